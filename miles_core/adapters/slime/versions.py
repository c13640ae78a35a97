"""Which policy version generated each trained token of a sample that a slime function filled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.errors import RolloutError
from miles_core.types import VersionSpan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Run = tuple[int, int]
"""Tokens ``start <= t < end`` that are trained, with none beside them that is."""


def reply_versions(meta: Mapping[str, Any], outputs: int | None = None) -> list[VersionSpan]:
    """The versions of one reply over its output tokens, whose number is ``outputs`` or what the reply tells."""
    if spans := meta.get("weight_versions"):
        return [VersionSpan(_number(span["version"]), int(span["start"]), int(span["end"])) for span in spans]
    version = meta.get("weight_version")
    if outputs is None:
        outputs = len(meta.get("output_token_logprobs") or ()) or int(meta.get("completion_tokens") or 0)
    return [] if version is None else [VersionSpan(_number(version), 0, outputs)]


def token_versions(sample: Any, runs: Sequence[Run]) -> tuple[VersionSpan, ...]:
    """Spans that cover the tokens of ``runs``.

    Exact where the sample kept the place of each generation, or where its generations are as long as the runs
    together; else one version for all, or one for each run.

    Raises:
        RolloutError: if what the sample holds does not tell.
    """
    if placed := getattr(sample, "version_spans", None) or _of_miles(sample.weight_versions):
        return _clipped(placed, runs)
    trained = sum(end - start for start, end in runs)
    in_order = _joined(getattr(sample, "replies", ()))
    if in_order and in_order[-1].end == trained:
        return _laid_out(in_order, runs)
    versions = [_number(version) for version in sample.weight_versions or ()]
    if len(set(versions)) == 1:
        versions = versions[:1] * len(runs)
    if len(versions) != len(runs):
        raise RolloutError(
            f"the sample's weight_versions are {versions}, which does not tell what generated each of its {trained} "
            f"trained tokens in {len(runs)} stretches",
            remedy='Call sample.update_from_meta_info(args, output["meta_info"]) after each generation, or '
            "sample.append_response_tokens(..., meta_info=...) instead of appending by hand.",
        )
    return tuple(VersionSpan(version, *run) for version, run in zip(versions, runs, strict=True))


def _number(raw: Any) -> int:
    return 0 if raw == "default" else int(raw)  # what SGLang calls the weights that it started with


def _of_miles(calls: Any) -> list[VersionSpan]:
    """What a sample of a newer Miles keeps for each call: spans over its tokens."""
    return [
        VersionSpan(_number(span.version), span.abs_start, span.abs_end)
        for call in calls or ()
        for span in getattr(call, "spans", ())
    ]


def _clipped(spans: Sequence[VersionSpan], runs: Sequence[Run]) -> tuple[VersionSpan, ...]:
    """Spans without tokens that a loss mask took out later; those that lack a trained token are refused."""
    cut = [
        VersionSpan(span.version, max(span.start, start), min(span.end, end))
        for start, end in runs
        for span in spans
        if max(span.start, start) < min(span.end, end)
    ]
    if sum(span.end - span.start for span in cut) != sum(end - start for start, end in runs):
        raise RolloutError("the sample's weight versions do not cover each of its trained tokens once")
    return tuple(cut)


def _joined(replies: Sequence[Sequence[VersionSpan]]) -> list[VersionSpan]:
    """The spans of several replies, counted over all their output tokens."""
    joined: list[VersionSpan] = []
    for reply in replies:
        at = joined[-1].end if joined else 0
        joined += [VersionSpan(span.version, at + span.start, at + span.end) for span in reply]
    return joined


def _laid_out(spans: Sequence[VersionSpan], runs: Sequence[Run]) -> tuple[VersionSpan, ...]:
    """Spans over trained tokens, counted in order, at the places of these tokens."""
    placed, before = list[VersionSpan](), 0
    for start, end in runs:
        counted = _clipped(spans, [(before, before + end - start)])
        placed += [VersionSpan(s.version, start + s.start - before, start + s.end - before) for s in counted]
        before += end - start
    return tuple(placed)
