"""Each result of a tool must name a call that came before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.session.server.request import ClientError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.types import Message


def check_tool_results(messages: Sequence[Message]) -> None:
    """Refuse results without their call.

    Raises:
        ClientError: naming the message.
    """
    called: set[str] = set()
    for index, message in enumerate(messages):
        called.update(str(call["id"]) for call in message.tool_calls)
        if message.role != "tool":
            continue
        if not message.tool_call_id:
            raise ClientError(
                f"message {index} is the result of a tool, but names no call",
                param=f"messages[{index}].tool_call_id",
                remedy="Send the id of the call that it answers as tool_call_id.",
            )
        if message.tool_call_id not in called:
            raise ClientError(
                f"message {index} answers the call {message.tool_call_id!r}, which no earlier message makes",
                param=f"messages[{index}].tool_call_id",
                remedy="Send the assistant message with its tool_calls before their results.",
            )
