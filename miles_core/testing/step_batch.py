"""Whole training steps for tests of advantage estimators."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.train.batching import TrainStep, collect

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from miles_core.types import Group, StepBatch

OPTIONAL_FIELDS = ("proximal_logprobs", "reference_logprobs", "values")


def make_step_batch(groups: Sequence[Group], *, fields: Collection[str] = (), seed: int = 0) -> StepBatch:
    """The arrays of a step of scored groups, as the trainer makes them.

    ``fields`` are the optional fields to fill with random numbers: ``proximal_logprobs``, ``reference_logprobs``,
    ``values``.

    Raises:
        TrainError: if a trajectory may not be trained or has no reward.
        ValueError: if there is no such field.
    """
    if unknown := sorted(set(fields) - set(OPTIONAL_FIELDS)):
        raise ValueError(f"fields must be among {', '.join(OPTIONAL_FIELDS)}; got {', '.join(unknown)}")
    trained = sum(sample.trained_tokens for g in groups for t in g.trajectories for sample in t.samples)
    _, batch = collect(TrainStep(0, tuple(groups), max(1, trained), 1e-3))
    rng = np.random.default_rng(seed)
    noise = {name: (rng.normal(size=len(batch.tokens)) / 4).astype(np.float32) for name in OPTIONAL_FIELDS}
    mask = batch.loss_mask
    filled: dict[str, Any] = {
        name: values if name == "values" else np.where(mask, batch.rollout_logprobs + values, 0).astype(np.float32)
        for name, values in noise.items()
        if name in fields
    }
    return replace(batch, **filled)
