"""The reply of ``/generate`` as a :class:`Generation`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.engine.routing_payload import decode_routing
from miles_core.errors import EngineError
from miles_core.types import FinishReason, Generation, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from miles_core.types import GenerateRequest, RoutingSpec

# what SGLang calls the weights that it started with
_INITIAL = "default"
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def parse_generation(
    reply: Mapping[str, Any], request: GenerateRequest, routing: RoutingSpec | None, *, rows_from: int | None = None
) -> Generation:
    """The generation in one reply; an aborted one that lacks what tokens must come with keeps no tokens.

    Routing rows come from position ``rows_from`` on, by default the request's own start, or from an engine that ignores
    it from 0 on; those before the request's start are left out.

    Raises:
        EngineError: if something that was asked for is missing or malformed, a logprob is not finite, or the spans
            of policy versions do not tile the output.
        RoutingError: if the routed experts do not have one row per fed token, or a row is impossible.
    """
    try:
        meta = reply["meta_info"]
        finish = _finish_reason(meta["finish_reason"])
        output_ids = np.array(reply.get("output_ids") or [], np.int32)
        cached = int(meta.get("cached_tokens") or 0)
        if not request.return_routed_experts:
            routing = None
        if finish.type == "abort" and not _recorded(meta, routing):
            return Generation(output_ids[:0], np.zeros(0, np.float32), finish, cached_tokens=cached)
        return Generation(
            output_ids=output_ids,
            logprobs=_logprobs(meta, output_ids),
            finish_reason=finish,
            versions=_versions(meta, len(output_ids)),
            routed_experts=_routed_experts(meta, request, routing, len(output_ids), rows_from),
            cached_tokens=cached,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise EngineError(
            f"the engine's reply to {request.rid} is malformed: {type(error).__name__}: {error}",
            remedy="Check that the URL is that of an SGLang-compatible engine and that no proxy changes replies.",
        ) from error


def check_sampled(ids: NDArray[Any], vocab_size: int, rid: str) -> None:
    """Check that the model that is trained could have sampled ``ids``.

    Raises:
        EngineError: if one is outside of the vocabulary.
    """
    foreign = ids[(ids < 0) | (ids >= vocab_size)]
    if len(foreign):
        raise EngineError(
            f"the engine sampled token {foreign[0]} for {rid}; the trained model's vocabulary has {vocab_size}",
            remedy="Check that the engine serves the model that is trained.",
        )


def _finish_reason(raw: Mapping[str, Any]) -> FinishReason:
    kind = raw["type"]
    if kind not in ("stop", "length", "abort"):
        raise ValueError(f"finish_reason must be stop, length or abort; got {kind!r}")
    return FinishReason(kind, raw.get("matched"), raw.get("message"))


def _recorded(meta: Mapping[str, Any], routing: RoutingSpec | None) -> bool:
    """Whether the reply says with which probability, by which weights and through which experts its tokens came.

    Without these, tokens can be neither trained on nor continued from; requests aborted in the queue lack them.
    """
    versioned = meta.get("weight_versions") or meta.get("weight_version") is not None
    routed = routing is None or meta.get("routed_experts") is not None
    return bool(versioned) and routed and meta.get("output_token_logprobs") is not None


def _logprobs(meta: Mapping[str, Any], output_ids: NDArray[np.int32]) -> NDArray[np.float32]:
    pairs = meta.get("output_token_logprobs")
    if pairs is None:
        raise EngineError(
            "logprobs were asked for, but the reply has no output_token_logprobs",
            remedy="Check that no proxy drops return_logprob or rewrites meta_info.",
        )
    if [pair[1] for pair in pairs] != output_ids.tolist():
        raise EngineError(
            f"output_token_logprobs must cover the output ids one by one; got {len(pairs)} logprobs for "
            f"{len(output_ids)} ids",
            remedy="Check that speculative decoding and output rewriting are off.",
        )
    logprobs = np.array([pair[0] for pair in pairs], np.float64)
    # what float32 cannot hold is no logprob either; NaN compares false
    wrong = np.flatnonzero(~(np.abs(logprobs) <= _FLOAT32_MAX))
    if len(wrong):
        raise EngineError(
            f"every output logprob must be a finite number; that of output {wrong[0]} is {pairs[wrong[0]][0]!r}",
            remedy="Check the engine's weights and its log for NaN.",
        )
    return logprobs.astype(np.float32)


def _versions(meta: Mapping[str, Any], outputs: int) -> tuple[VersionSpan, ...]:
    raw = meta.get("weight_versions")
    if not raw:
        return _one_version(meta, outputs)
    spans = [VersionSpan(_version(span["version"]), int(span["start"]), int(span["end"])) for span in raw]
    abut = [*(span.start for span in spans), outputs] == [0, *(span.end for span in spans)]
    if not abut or any(span.end < span.start for span in spans):
        shown = ", ".join(f"[{span.start}, {span.end})" for span in spans)
        raise EngineError(
            f"weight_versions must tile the output, [0, {outputs}), in order; got {shown}",
            remedy="Check that no proxy cuts replies, and that the engine counts spans over output tokens.",
        )
    # an empty span would make the output look older than it is
    return tuple(span for span in spans if span.start < span.end)


def _one_version(meta: Mapping[str, Any], outputs: int) -> tuple[VersionSpan, ...]:
    if not outputs:
        return ()
    if meta.get("weight_version") is None:
        raise EngineError(
            f"the reply does not say which weights generated its {outputs} tokens: it has neither weight_versions "
            "nor weight_version",
            remedy="Check that no proxy rewrites meta_info and that the engine reports weight_version.",
        )
    return (VersionSpan(_version(meta["weight_version"]), 0, outputs),)


def _version(raw: Any) -> int:
    try:
        return 0 if raw == _INITIAL else int(raw)
    except (TypeError, ValueError):
        raise EngineError(
            f"weight_version must be a policy version, an integer; got {raw!r}",
            remedy="Start the engine with --weight-version 0 and let miles set the later ones.",
        ) from None


def _routed_experts(
    meta: Mapping[str, Any],
    request: GenerateRequest,
    routing: RoutingSpec | None,
    outputs: int,
    rows_from: int | None,
) -> NDArray[Any] | None:
    if routing is None:
        return None
    encoded = meta.get("routed_experts")
    if encoded is None:
        raise EngineError(
            "routed experts were asked for, but the reply has none",
            remedy="Start the engine with --enable-return-routed-experts, and check that the router forwards "
            "return_routed_experts.",
        )
    start = request.routed_experts_start_len
    return decode_routing(
        encoded,
        routing,
        tokens=len(request.input_ids) + outputs,
        start=start,
        sent_from=start if rows_from is None else rows_from,
    )
