"""A session as plain JSON, and its turns read back: what ``GET /sessions/{id}`` answers and the audit reads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.errors import DataError
from miles_core.session.tree import TurnNode
from miles_core.types import FinishReason, Message, SamplingParams, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.session.session import TokenSession


def session_record(session: TokenSession) -> dict[str, Any]:
    """The turns of a session in the order they were stored, with all of their tokens.

    ``clock`` is the time that the chat template was told, ``None`` for a renderer that has none.
    """
    clock = getattr(session.renderer, "clock", None)
    return {
        "clock": clock.isoformat() if isinstance(clock, datetime) else None,
        "turns": turn_records(session.tree.nodes),
    }


def turn_records(nodes: Sequence[TurnNode]) -> list[dict[str, Any]]:
    """One record for each turn; ``parent`` is the index of the turn that it continues."""
    index = {node: number for number, node in enumerate(nodes)}
    return [_turn(node, number, None if node.parent is None else index[node.parent]) for node, number in index.items()]


def _turn(node: TurnNode, index: int, parent: int | None) -> dict[str, Any]:
    sampling = node.sampling
    return {
        "index": index,
        "parent": parent,
        "appended": [plain(message.to_chat()) for message in node.appended],
        "tools": plain(node.tools),
        "response": plain(node.response.to_chat()),
        "context_ids": node.context_ids.tolist(),
        "output_ids": node.output_ids.tolist(),
        "logprobs": node.logprobs.tolist(),
        "versions": [[span.version, span.start, span.end] for span in node.versions],
        "sampling": {name: plain(getattr(sampling, name)) for name in SamplingParams.__slots__},
        "trainable": sampling.trainable,
        "finish_reason": {name: getattr(node.finish_reason, name) for name in FinishReason.__slots__},
        "stop": node.stop,
        "cached_tokens": node.cached_tokens,
        "routing_rows": None if node.routing is None else len(node.routing),
    }


def plain(value: Any) -> Any:
    """The value with plain dictionaries and lists in place of read-only mappings and tuples."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def read_record(record: Any) -> tuple[TurnNode, ...]:
    """The turns of a record, without their routing.

    Raises:
        DataError: if it is no record of a session.
    """
    nodes: list[TurnNode] = []
    try:
        for number, turn in enumerate(record["turns"]):
            parent = turn["parent"]
            if parent is not None and not 0 <= parent < number:
                raise ValueError(f"turn {number} names turn {parent} as its parent; expected an earlier one")
            nodes.append(_node(turn, None if parent is None else nodes[parent]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"this is no record of a session: {what}", remedy="Give what GET /sessions/ID answers."
        ) from error
    return tuple(nodes)


def recorded_clock(record: Mapping[str, Any]) -> datetime | None:
    """The time that the chat template of a recorded session was told.

    Raises:
        DataError: if it is no ISO time.
    """
    clock = record.get("clock")
    try:
        return None if clock is None else datetime.fromisoformat(clock)
    except (TypeError, ValueError) as error:
        raise DataError(f"the clock of a session is an ISO time; its record has {clock!r}") from error


def _node(turn: Mapping[str, Any], parent: TurnNode | None) -> TurnNode:
    sampling = {name: value for name, value in turn["sampling"].items() if name in SamplingParams.__slots__}
    texts = {name: tuple(sampling.get(name) or ()) for name in ("stop_token_ids", "stop")}
    return TurnNode(
        parent=parent,
        tools=tuple(turn["tools"]),
        appended=tuple(Message.from_chat(chat) for chat in turn["appended"]),
        response=Message.from_chat(turn["response"]),
        context_ids=_ids(turn["context_ids"]),
        output_ids=_ids(turn["output_ids"]),
        logprobs=np.asarray(turn["logprobs"], np.float32),
        versions=tuple(VersionSpan(*span) for span in turn["versions"]),
        sampling=SamplingParams(**{**sampling, **texts}),
        stop=turn["stop"],
        finish_reason=FinishReason(**turn["finish_reason"]),
        cached_tokens=turn["cached_tokens"],
        routing=None,
    )


def _ids(values: Any) -> np.ndarray:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise ValueError("token ids are lists of integers")
    return np.asarray(values, np.int32)
