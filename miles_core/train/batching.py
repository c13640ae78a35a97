"""From kept groups to the flat arrays that estimators and losses see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.errors import TrainError
from miles_core.types import Sample, StepBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from miles_core.types import Group

DEMONSTRATION = "demonstration"
"""The ``agent_id`` of samples that no engine sampled, as the supervised stage has them."""


@dataclass(frozen=True, eq=False)
class TrainStep:
    """What one training step gets: kept groups, and the token count that reductions divide by."""

    step: int
    groups: tuple[Group, ...]
    denominator_tokens: int
    learning_rate: float


def collect(step: TrainStep) -> tuple[list[Sample], StepBatch]:
    """The step's samples in order, and their arrays.

    Each agent's trajectories of a task are a group of their own: its rewards are compared with its own only.

    Raises:
        TrainError: if a sample may not be trained or has no reward.
    """
    samples: list[Sample] = []
    groups: list[int] = []
    trajectories: list[int] = []
    group_numbers: dict[tuple[int, str], int] = {}
    trajectory_numbers: dict[tuple[int, int, str], int] = {}
    for index, group in enumerate(step.groups):
        for member, trajectory in enumerate(group.trajectories):
            for sample in trajectory.samples:
                _check(sample)
                samples.append(sample)
                groups.append(group_numbers.setdefault((index, sample.agent_id), len(group_numbers)))
                key = (index, member, sample.agent_id)
                trajectories.append(trajectory_numbers.setdefault(key, len(trajectory_numbers)))
    return samples, make_batch(samples, groups, trajectories, step.denominator_tokens)


def make_batch(
    samples: Sequence[Sample], groups: Sequence[int], trajectories: Sequence[int], denominator_tokens: int
) -> StepBatch:
    """Concatenate samples; ``denominator_tokens`` is at least the trained tokens among them."""
    trained = sum(sample.trained_tokens for sample in samples)
    if denominator_tokens < trained:
        raise TrainError(f"denominator_tokens is {denominator_tokens}, but the samples hold {trained} trained tokens")
    lengths = [len(sample.tokens) for sample in samples]
    rewards = [sample.reward.value if sample.reward is not None else None for sample in samples]
    return StepBatch(
        cu_seqlens=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        tokens=_concat([sample.tokens for sample in samples], np.int32),
        loss_mask=_concat([sample.loss_mask for sample in samples], np.bool_),
        temperatures=_concat([temperatures(sample) for sample in samples], np.float32),
        rollout_logprobs=_concat([sample.logprobs for sample in samples], np.float32),
        rewards=np.array([np.nan if reward is None else reward for reward in rewards], dtype=np.float64),
        group_index=np.asarray(groups, dtype=np.int64),
        trajectory_index=np.asarray(trajectories, dtype=np.int64),
        denominator_tokens=denominator_tokens,
    )


def temperatures(sample: Sample) -> NDArray[np.float32]:
    """The sampling temperature of each token's turn, ``[T]``; 1 where the policy did not generate."""
    values = np.ones(len(sample.tokens), np.float32)
    for turn in sample.turns:
        values[turn.start : turn.end] = turn.sampling.temperature
    return values


def _check(sample: Sample) -> None:
    if not sample.status.trainable:
        raise TrainError(f"sample {sample.trajectory_id} is {sample.status}: it may not enter the loss")
    if sample.reward is None or sample.reward.value is None:
        raise TrainError(f"sample {sample.trajectory_id} has no reward: it may not enter the loss")


def _concat(parts: Sequence[NDArray[Any]], dtype: type[Any]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype)
