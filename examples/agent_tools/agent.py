"""An agent on the unmodified OpenAI SDK: it asks the policy, runs the tools that it calls, and asks again."""

from __future__ import annotations

import json
import ssl
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageToolCallUnion as Call

    from miles_core.api import AgentSession, PluginContext, Task

MOST_TURNS = 3
TLS = ssl.create_default_context()  # a client without it reads all certificates, 20 ms in each of hundreds of episodes


def tool(name: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS: list[Any] = [tool("get", key="string"), tool("add", a="integer", b="integer")]


class ToolUser:
    """Answers "c?" with the value of a key and "1+3?" with a sum, as a tool said them."""

    observation_roles = ("tool",)

    def __init__(self, config: object, context: PluginContext) -> None:
        del config, context

    async def run(self, task: Task, session: AgentSession) -> float:
        """1 for the right answer, if a tool said it before, else 0; nothing is to be won after a call that is wrong."""
        messages: list[Any] = [message.to_chat() for message in task.messages]
        said: list[str] = []
        http = DefaultAsyncHttpxClient(verify=TLS)
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, http_client=http) as client:
            for _ in range(MOST_TURNS):
                reply = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
                message = reply.choices[0].message
                if not message.tool_calls:
                    return float(message.content == task.label and task.label in said)
                messages.append(message)
                for call in message.tool_calls:
                    result = use(call, task)
                    if result is None:
                        return 0.0
                    said.append(result)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return 0.0


def use(call: Call, task: Task) -> str | None:
    """What a tool says; ``None`` to a call that it does not understand, or for a key that is not the task's."""
    if call.type != "function":
        return None
    match call.function.name, parsed(call.function.arguments):
        case "add", {"a": int(a), "b": int(b)}:
            return str(a + b)
        case "get", {"key": str(key)} if task.messages[-1].text == f"{key}?":
            return str(task.label)
    return None


def parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return None
