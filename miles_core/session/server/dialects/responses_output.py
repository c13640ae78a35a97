"""Answers as OpenAI's responses: output items, status and usage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from miles_core.session.server.request import ChatRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.session.server.answer import Answer, Choice


@dataclass(frozen=True, slots=True)
class ResponsesRequest(ChatRequest):
    """A request with the fields of its body that a response repeats."""

    repeated: Mapping[str, Any] = field(default_factory=dict)


def reasoning_part(text: str) -> dict[str, Any]:
    """The content of a reasoning item."""
    return {"type": "reasoning_text", "text": text}


def reasoning_item(response_id: str, text: str, status: str) -> dict[str, Any]:
    """What was thought, as it was: there is no summary of it."""
    item_id = f"rs_{response_id}"
    return {"type": "reasoning", "id": item_id, "summary": [], "content": [reasoning_part(text)], "status": status}


def text_part(text: str) -> dict[str, Any]:
    """The content of a message item."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message_item(response_id: str, text: str, status: str) -> dict[str, Any]:
    """What was said."""
    item_id = f"msg_{response_id}"
    return {"type": "message", "id": item_id, "role": "assistant", "content": [text_part(text)], "status": status}


def call_item(response_id: str, index: int, call: Mapping[str, Any], status: str) -> dict[str, Any]:
    """A call; its arguments come at the end where it is ``in_progress``."""
    function = call["function"]
    return {
        "type": "function_call",
        "id": f"fc_{response_id}_{index}",
        "call_id": call["id"],
        "name": function["name"],
        "arguments": "" if status == "in_progress" else function["arguments"],
        "status": status,
    }


def output_items(response_id: str, choice: Choice) -> list[dict[str, Any]]:
    """What was thought, said and called; an empty message where that is nothing."""
    message, last = choice.message, last_status(choice)
    items = []
    if choice.reasoning:
        more = bool(message.text or message.tool_calls)
        items.append(reasoning_item(response_id, choice.reasoning, "completed" if more else last))
    if message.text or not (choice.reasoning or message.tool_calls):
        status = "completed" if message.tool_calls else last
        items.append(message_item(response_id, message.text, status))
    items += [call_item(response_id, index, call, "completed") for index, call in enumerate(message.tool_calls)]
    return items


def last_status(choice: Choice) -> str:
    """The status of the response, and of the item in which it ended."""
    return "incomplete" if choice.finish == "length" else "completed"


def unfinished(response_id: str, created: int, model: str, request: ChatRequest) -> dict[str, Any]:
    """A response of which nothing is known but the request."""
    tools = [{"type": "function", "strict": False, **tool["function"]} for tool in request.tools]
    return {
        "id": f"resp_{response_id}",
        "object": "response",
        "created_at": created,
        "model": model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        "tools": tools,
        "tool_choice": "auto" if request.parse_calls else "none",
        "parallel_tool_calls": True,
        "temperature": request.sampling.temperature,
        "top_p": 1.0,
        "max_output_tokens": request.sampling.max_new_tokens,
        "truncation": "disabled",
        **(request.repeated if isinstance(request, ResponsesRequest) else {}),
    }


def finished(answer: Answer, request: ChatRequest) -> dict[str, Any]:
    """The whole response."""
    (choice,) = answer.choices
    status = last_status(choice)
    return {
        **unfinished(answer.id, answer.created, answer.model, request),
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": output_items(answer.id, choice),
        "usage": _usage(answer),
    }


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answer.completion_tokens,
        # which tokens were reasoning is known of the text only
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
