"""An aborted generation and its continuation as one generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from miles_core.types import Generation, VersionSpan
from miles_core.types.routing import join_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from miles_core.types import RoutingSpec


def join_generations(first: Generation, second: Generation, spec: RoutingSpec | None) -> Generation:
    """What one undisturbed call would have returned; ``second`` continued the output of ``first``.

    ``cached_tokens`` are those of the turn's own prompt, so the first call's.
    """
    done = len(first.output_ids)
    moved = (VersionSpan(span.version, span.start + done, span.end + done) for span in second.versions)
    rows = [part for part in (first.routed_experts, second.routed_experts) if part is not None]
    return Generation(
        output_ids=np.concatenate([first.output_ids, second.output_ids]),
        logprobs=np.concatenate([first.logprobs, second.logprobs]),
        finish_reason=second.finish_reason,
        versions=_merged((*first.versions, *moved)),
        routed_experts=join_rows(rows, spec) if spec is not None else None,
        cached_tokens=first.cached_tokens,
    )


def _merged(spans: Iterable[VersionSpan]) -> tuple[VersionSpan, ...]:
    merged: list[VersionSpan] = []
    for span in spans:
        if merged and merged[-1].version == span.version:
            span = VersionSpan(span.version, merged.pop().start, span.end)
        merged.append(span)
    return tuple(merged)
