from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from miles_core.train.changed_batch import checked_batch
from miles_core.types import StepBatch

BATCH = StepBatch(
    cu_seqlens=np.array([0, 3, 5]),
    tokens=np.arange(5, dtype=np.int32),
    loss_mask=np.array([0, 1, 1, 0, 1], bool),
    temperatures=np.ones(5, np.float32),
    rollout_logprobs=np.full(5, -1, np.float32),
    rewards=np.array([0.0, 1.0]),
    group_index=np.array([0, 0]),
    trajectory_index=np.array([0, 1]),
    denominator_tokens=3,
)


def test_rewards_logprobs_and_groups_may_change_and_tokens_may_leave_the_loss():
    changed = replace(
        BATCH,
        rewards=BATCH.rewards * 2,
        rollout_logprobs=BATCH.rollout_logprobs - 1,
        group_index=np.array([0, 1]),
        loss_mask=np.array([0, 1, 0, 0, 1], bool),
        denominator_tokens=2,
    )
    assert checked_batch(BATCH, changed) is changed
    assert checked_batch(BATCH, BATCH) is BATCH


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"rewards": np.array([0.0])}, r"rewards must be float64 \[2\], got float64 \[1\]"),
        ({"rewards": np.array([0.0, 1.0], np.float32)}, r"rewards must be float64 \[2\], got float32 \[2\]"),
        ({"rewards": [0.0, 1.0]}, r"rewards must be float64 \[2\], got list"),
        ({"rewards": np.array([np.nan, 1.0])}, "rewards has 1 values that are not finite"),
        ({"rollout_logprobs": np.full(5, -np.inf, np.float32)}, "rollout_logprobs has 5 values that are not finite"),
        ({"tokens": BATCH.tokens + 1}, "tokens must stay as it is; these may change: denominator_tokens, group_index"),
        ({"cu_seqlens": np.array([0, 2, 5])}, "cu_seqlens must stay as it is"),
        ({"temperatures": np.full(5, 2, np.float32)}, "temperatures must stay as it is"),
        ({"loss_mask": np.ones(5, bool)}, "loss_mask has 2 tokens that were not to be trained"),
        ({"loss_mask": np.zeros(5, bool)}, "loss_mask leaves no token"),
        ({"denominator_tokens": 0}, "denominator_tokens must be 1 or more, got 0"),
        ({"denominator_tokens": 2.5}, "denominator_tokens must be int, got float"),
        ({"proximal_logprobs": BATCH.rollout_logprobs}, "proximal_logprobs must be None, got ndarray"),
    ],
)
def test_what_could_not_be_trained_on_is_refused(changes, cause):
    with pytest.raises(ValueError, match=cause):
        checked_batch(BATCH, replace(BATCH, **changes))


def test_anything_but_a_batch_is_refused():
    with pytest.raises(ValueError, match="expected a StepBatch, got dict"):
        checked_batch(BATCH, {})
