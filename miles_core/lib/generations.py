"""An aborted generation and its continuation as one generation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from miles_core.types import Generation, VersionSpan
from miles_core.types.routing import join_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from miles_core.types import RoutingSpec, SamplingParams

_SEEDS = 1 << 63
_STRIDE = 0x9E3779B97F4A7C15


def rest_of(sampling: SamplingParams, done: int) -> SamplingParams:
    """How an aborted generation goes on after ``done`` tokens.

    With another seed: the noise of engines may depend on the seed and the place in the output, and the place begins at
    0 again; with the same one, later tokens would follow earlier ones in ways that the policy does not.
    """
    seed = sampling.sampling_seed
    changed = None if seed is None else (seed + done * _STRIDE) % _SEEDS
    return replace(sampling, max_new_tokens=sampling.max_new_tokens - done, sampling_seed=changed)


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
        routed_experts=join_rows(rows, spec) if spec is not None and rows else None,
        cached_tokens=first.cached_tokens,
    )


def _merged(spans: Iterable[VersionSpan]) -> tuple[VersionSpan, ...]:
    merged: list[VersionSpan] = []
    for span in spans:
        if merged and merged[-1].version == span.version:
            span = VersionSpan(span.version, merged.pop().start, span.end)
        merged.append(span)
    return tuple(merged)
