"""Answers as Anthropic's messages: blocks, reasons and usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.session.matching import json_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.session.server.answer import Answer, Choice

SIGNATURE = "unsigned"
"""Thinking blocks need a signature; here it says nothing, and any comes back as well."""


def content_blocks(choice: Choice) -> list[dict[str, Any]]:
    """What was thought, said and called; an empty text where that is nothing."""
    message, blocks = choice.message, list[dict[str, Any]]()
    if choice.reasoning:
        blocks.append({"type": "thinking", "thinking": choice.reasoning, "signature": SIGNATURE})
    if message.text:
        blocks.append({"type": "text", "text": message.text})
    blocks += [{**call_block(call), "input": call_input(call["function"]["arguments"])} for call in message.tool_calls]
    return blocks or [{"type": "text", "text": ""}]


def call_block(call: Mapping[str, Any]) -> dict[str, Any]:
    """A block of a call whose input is still to come."""
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}


def call_input(arguments: str) -> Any:
    """The arguments of a call as a value; what no reply in JSON can hold, such as 1e999, is its text."""
    try:
        return json_value(arguments)
    except (ValueError, RecursionError):
        return arguments  # of a parser that does not care


def stop_fields(choice: Choice, stop: Sequence[str]) -> dict[str, Any]:
    """``stop_reason`` and ``stop_sequence``; ``stop`` are the texts that the client asked to stop at."""
    matched = choice.turn.generation.finish_reason.matched
    if choice.finish == "stop" and isinstance(matched, str) and matched in stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    return {"stop_reason": reasons[choice.finish], "stop_sequence": None}


def usage(answer: Answer) -> dict[str, int]:
    """Tokens; those of the prompt are counted either as cached or as input."""
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": answer.completion_tokens,
    }
