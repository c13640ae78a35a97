"""Advantage estimators that break one rule each."""

from __future__ import annotations

import numpy as np

from miles_core.api import Estimates
from miles_core.testing import AdvantageEstimatorSuite, make_group


class Right:
    """The reward less the group's mean, for each token."""

    needs = ()

    def __init__(self, config, context):
        self.seen = 0

    def estimate(self, step_batch):
        return Estimates(self.spread(step_batch, self.per_sample(step_batch)))

    def per_sample(self, batch):
        groups = batch.group_index
        means = [batch.rewards[groups == group].mean() for group in range(groups.max() + 1)]
        return batch.rewards - np.array(means)[groups]

    def spread(self, batch, values):
        return batch.per_token(values).astype(np.float32)


class Wide(Right):
    """In float64."""

    def spread(self, batch, values):
        return batch.per_token(values)


class Unguarded(Right):
    """Divides by the spread, whatever it is."""

    def per_sample(self, batch):
        groups = batch.group_index
        with np.errstate(all="ignore"):
            spreads = np.array([batch.rewards[groups == group].std() for group in range(groups.max() + 1)])
            return super().per_sample(batch) / spreads[groups]


class FirstGroup(Right):
    """Compares with the first group."""

    def per_sample(self, batch):
        return batch.rewards - batch.rewards[batch.group_index == 0].mean()


class FirstOfGroup(Right):
    """Compares with the first trajectory of each group."""

    def per_sample(self, batch):
        _, first = np.unique(batch.group_index, return_index=True)
        return batch.rewards - batch.rewards[first][batch.group_index]


class Remembering(Right):
    """Takes off a running mean."""

    def per_sample(self, batch):
        self.seen += batch.rewards.sum()
        return super().per_sample(batch) - self.seen


class Undeclared(Right):
    """Reads reference logprobs where there are some."""

    def spread(self, batch, values):
        plain = super().spread(batch, values)
        return plain if batch.reference_logprobs is None else plain - batch.reference_logprobs


class Prompted(Right):
    """Takes off the mean logprob of the whole sequence."""

    def per_sample(self, batch):
        starts = batch.cu_seqlens[:-1]
        return super().per_sample(batch) - np.add.reduceat(batch.rollout_logprobs, starts) / batch.lengths


class Changing(Right):
    """Clips rewards in place."""

    def per_sample(self, batch):
        np.clip(batch.rewards, -1, 1, out=batch.rewards)
        return super().per_sample(batch)


class TestRight(AdvantageEstimatorSuite):
    plugin = Right
    breaks = ()


class TestWide(AdvantageEstimatorSuite):
    plugin = Wide
    breaks = ("returns_float32_per_token",)


class TestUnguarded(AdvantageEstimatorSuite):
    plugin = Unguarded
    examples = (make_group(1.0, 0.0, 0.5), make_group(3.0, 2.0, id="group-1"))
    breaks = ("is_always_finite",)


class TestFirstGroup(AdvantageEstimatorSuite):
    plugin = FirstGroup
    breaks = ("the_order_of_groups_does_not_matter",)


class TestFirstOfGroup(AdvantageEstimatorSuite):
    plugin = FirstOfGroup
    breaks = ("the_order_of_trajectories_does_not_matter",)


class TestRemembering(AdvantageEstimatorSuite):
    plugin = Remembering
    breaks = ("estimates_the_same_again",)


class TestUndeclared(AdvantageEstimatorSuite):
    plugin = Undeclared
    breaks = ("reads_only_what_it_needs",)


class TestPrompted(AdvantageEstimatorSuite):
    plugin = Prompted
    breaks = ("ignores_what_is_not_trained",)


class TestChanging(AdvantageEstimatorSuite):
    plugin = Changing
    breaks = ("does_not_change_the_step",)
    ruins = True  # elsewhere the arrays are read-only
