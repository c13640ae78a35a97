"""The reply of ``/generate`` as a :class:`Generation`."""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, Any

import numpy as np
import pybase64

from miles_core.errors import EngineError, RoutingError
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
    """The generation in one reply; an aborted one without logprobs or versions keeps no tokens.

    Routing rows come from position ``rows_from`` on, by default the request's own start; earlier ones are left out.

    Raises:
        EngineError: if something that was asked for is missing or malformed, a logprob is not finite, or the spans
            of policy versions do not tile the output.
        RoutingError: if the routed experts do not have one row per fed token.
    """
    try:
        meta = reply["meta_info"]
        finish = _finish_reason(meta["finish_reason"])
        output_ids = np.array(reply.get("output_ids") or [], np.int32)
        cached = int(meta.get("cached_tokens") or 0)
        aborted = finish.type == "abort"
        if aborted and not _recorded(meta):
            return Generation(output_ids[:0], np.zeros(0, np.float32), finish, cached_tokens=cached)
        return Generation(
            output_ids=output_ids,
            logprobs=_logprobs(meta, output_ids),
            finish_reason=finish,
            versions=_versions(meta, len(output_ids)),
            routed_experts=_routed_experts(meta, request, routing, len(output_ids), rows_from, aborted=aborted),
            cached_tokens=cached,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise EngineError(
            f"the engine's reply to {request.rid} is malformed: {type(error).__name__}: {error}",
            remedy="Check that the URL is that of an SGLang-compatible engine and that no proxy changes replies.",
        ) from error


def _finish_reason(raw: Mapping[str, Any]) -> FinishReason:
    kind = raw["type"]
    if kind not in ("stop", "length", "abort"):
        raise ValueError(f"finish_reason must be stop, length or abort; got {kind!r}")
    return FinishReason(kind, raw.get("matched"), raw.get("message"))


def _recorded(meta: Mapping[str, Any]) -> bool:
    """Whether the reply says with which probability and by which weights its tokens were generated.

    Without both, tokens can be neither trained on nor continued from; requests aborted in the queue lack them.
    """
    versioned = meta.get("weight_versions") or meta.get("weight_version") is not None
    return bool(versioned) and meta.get("output_token_logprobs") is not None


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
    *,
    aborted: bool,
) -> NDArray[np.int32] | None:
    if not request.return_routed_experts or routing is None:
        return None
    encoded = meta.get("routed_experts")
    if encoded is None and aborted:
        return None
    if encoded is None:
        raise EngineError(
            "routed experts were asked for, but the reply has none",
            remedy="Start the engine with --enable-return-routed-experts, and check that the router forwards "
            "return_routed_experts.",
        )
    try:
        raw = pybase64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise RoutingError(f"routed_experts is not base64: {error}") from error
    start = request.routed_experts_start_len
    first = start if rows_from is None else rows_from
    rows = max(0, len(request.input_ids) + outputs - 1 - first)
    expected = rows * routing.num_layers * routing.top_k * 4
    if len(raw) != expected:
        raise RoutingError(
            f"routed_experts must hold {expected} bytes: {rows} rows x {routing.num_layers} layers x "
            f"{routing.top_k} experts x 4; got {len(raw)}",
            remedy="Check that the engine serves the model that is trained, and that no proxy cuts replies.",
        )
    return np.frombuffer(raw, "<i4").astype(np.int32).reshape(rows, routing.num_layers, routing.top_k)[start - first :]
