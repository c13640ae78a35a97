"""Tokens that SGLang has sampled and not counted yet when its weights get another version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def record_weight_version_change(original: Callable[..., None], scheduler: Any, new_version: str | None) -> None:
    """Count what the old version has sampled as its own.

    SGLang overlaps steps, and pauses in place with the result of the last one unread. Its own record counts the tokens
    that were read, and so calls those after them new.
    """
    from sglang.srt.runtime_context import get_serving  # type: ignore[import-not-found]

    old = get_serving().weight_version
    original(scheduler, new_version=new_version)
    if get_serving().weight_version == old:
        return
    for batch, result in getattr(scheduler, "result_queue", ()):
        for request, count in zip(batch.reqs, _sampled(batch, result), strict=True):
            if count and not request.finished() and not request.is_retracted:
                _record(request, old, len(request.output_ids) + count)


def _sampled(batch: Any, result: Any) -> Sequence[int]:
    """Tokens that each request gets from a step: none in the middle of a prompt, several where SGLang speculates."""
    if result.accept_lens is None:
        return [int(request.inflight_middle_chunks <= 0) for request in batch.reqs]
    if result.copy_done is not None:
        result.copy_done.synchronize()
    counts: list[int] = result.accept_lens.tolist()
    return counts


def _record(request: Any, version: str, tokens: int) -> None:
    from sglang.srt.utils.weight_versions import WeightVersionEvent  # type: ignore[import-not-found]

    events = request.weight_version_events
    if request.output_ids:  # SGLang has just recorded a request that has output
        events.pop()
    events.append(WeightVersionEvent(old_version=version, num_output_tokens=tokens))
