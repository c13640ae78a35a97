"""Replies of a scripted engine, as ``/generate`` sends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pybase64

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from miles_core.types import RoutingSpec


@dataclass(frozen=True, eq=False)
class ScriptedReply:
    """What one request is answered.

    ``tokens`` are the generated ids; they are cut after a stop token and at ``max_new_tokens``, as an engine would.
    ``logprobs`` are one per token (default -1, -1.001, -1.002, ...). ``routed_experts`` are int rows ``[prompt + output
    - 1 - start, layers, top_k]``. ``finish`` overrides how it ends: ``"stop"``, ``"length"`` or ``"abort"``.
    ``versions`` are ``(version, start, end)`` over the output. ``status`` other than 200 is an error with ``message``.
    ``hold`` answers only after ``release()`` or ``abort()``; aborted while held, half of the tokens come. ``delay`` is
    in seconds. A stream shows one token after the other; held, it shows half of them first. ``fails_after`` so many
    tokens a stream ends with an error that says ``message``, and what is no stream is answered 500.
    """

    tokens: Sequence[int] = ()
    logprobs: Sequence[float] | None = None
    routed_experts: NDArray[Any] | None = None
    finish: str | None = None
    versions: Sequence[tuple[int, int, int]] | None = None
    cached_tokens: int = 0
    status: int = 200
    message: str = "scripted failure"
    hold: bool = False
    delay: float = 0.0
    fails_after: int | None = None


def reply_body(
    reply: ScriptedReply,
    request: Mapping[str, Any],
    routing: RoutingSpec | None,
    *,
    version: int,
    aborted: bool,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> dict[str, Any]:
    """The JSON that answers ``request``; ``decode`` is what ``stop`` texts are found with."""
    tokens, finish = _cut(reply, request.get("sampling_params") or {}, decode)
    if aborted:
        tokens, finish = tokens[: len(tokens) // 2], {"type": "abort", "message": "aborted", "status_code": None}
    logprobs = _logprobs(reply, len(tokens))
    spans = [] if not tokens else reply.versions or [(version, 0, len(tokens))]
    meta: dict[str, Any] = {
        "id": request.get("rid"),
        "finish_reason": finish,
        "prompt_tokens": len(request["input_ids"]),
        "completion_tokens": len(tokens),
        "cached_tokens": reply.cached_tokens,
        "weight_version": str(version),
        "weight_versions": [{"version": str(v), "start": a, "end": min(b, len(tokens))} for v, a, b in spans],
    }
    if request.get("return_logprob"):
        meta["output_token_logprobs"] = [[value, token, None] for value, token in zip(logprobs, tokens, strict=True)]
    if request.get("return_routed_experts"):
        meta["routed_experts"] = _routed_experts(reply, request, routing, len(tokens))
    return {"text": "", "output_ids": tokens, "meta_info": meta}


def event_body(whole: Mapping[str, Any], shown: int) -> dict[str, Any]:
    """The event of a stream that has come to ``shown`` tokens of ``whole`` and will go on."""
    meta = {key: value for key, value in whole["meta_info"].items() if key not in ("weight_versions", "routed_experts")}
    meta |= {"finish_reason": None, "completion_tokens": shown}
    if "output_token_logprobs" in meta:
        meta["output_token_logprobs"] = meta["output_token_logprobs"][:shown]
    return {**whole, "output_ids": whole["output_ids"][:shown], "meta_info": meta}


def _cut(
    reply: ScriptedReply, sampling: Mapping[str, Any], decode: Callable[[Sequence[int]], str] | None
) -> tuple[list[int], dict[str, Any]]:
    tokens = [int(token) for token in reply.tokens]
    limit = int(sampling.get("max_new_tokens", 128))
    stops = set(sampling.get("stop_token_ids") or ())
    stop = next((place for place, token in enumerate(tokens) if token in stops), None)
    if stop is not None:
        tokens = tokens[: stop + 1]
    ending: dict[str, Any] = {"type": "stop", "matched": tokens[-1] if stop is not None else None}
    spoken = None if decode is None else _spoken_stop(tokens, sampling.get("stop") or (), decode)
    if spoken is not None:
        tokens, ending = tokens[: spoken[0]], {"type": "stop", "matched": spoken[1]}
    if len(tokens) >= limit:  # also where the last one is a stop token
        tokens, ending = tokens[:limit], {"type": "length", "length": limit}
    if reply.finish == "abort":
        ending = {"type": "abort", "message": reply.message, "status_code": None}
    elif reply.finish is not None:
        ending = {**ending, "type": reply.finish}
    return tokens, ending


def _spoken_stop(
    tokens: Sequence[int], stops: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> tuple[int, str] | None:
    """After how many tokens one of ``stops`` has been said, and which."""
    for count in range(1, len(tokens) + 1 if stops else 0):
        text = decode(tokens[:count])
        said = next((stop for stop in stops if stop in text), None)
        if said is not None:
            return count, said
    return None


def _logprobs(reply: ScriptedReply, count: int) -> list[float]:
    if reply.logprobs is None:
        return [-1.0 - place / 1000 for place in range(count)]
    if len(reply.logprobs) < count:
        raise ValueError(f"the reply has {count} tokens; its logprobs are {len(reply.logprobs)}")
    return [float(value) for value in reply.logprobs[:count]]


def _routed_experts(
    reply: ScriptedReply, request: Mapping[str, Any], routing: RoutingSpec | None, outputs: int
) -> str | None:
    if reply.routed_experts is not None:
        rows = np.ascontiguousarray(reply.routed_experts, dtype="<i4")
    elif routing is not None:
        start = int(request.get("routed_experts_start_len") or 0)
        rows = made_up_routes(routing, start, len(request["input_ids"]) + outputs - 1)
    else:
        return None
    return pybase64.b64encode(rows.tobytes()).decode()


def made_up_routes(routing: RoutingSpec, start: int, end: int) -> NDArray[np.int32]:
    """Rows ``start <= t < end`` of distinct experts per token and layer, a function of token and layer alone."""
    token = np.arange(start, max(start, end))[:, None, None]
    layer = np.arange(routing.num_layers)[None, :, None]
    slot = np.arange(routing.top_k)[None, None, :]
    rows: NDArray[np.int32] = ((token + layer + slot) % routing.num_experts).astype("<i4")
    return rows
