"""Builders make what a run makes."""

from __future__ import annotations

import numpy as np
import pytest

from miles_core.errors import TrainError
from miles_core.testing import make_group, make_sample, make_step_batch, make_task, make_trajectory
from miles_core.testing.tiny_config import tiny_config
from miles_core.types import Reward, Status


def test_a_trajectory_says_what_it_is_told_turn_by_turn() -> None:
    trajectory = make_trajectory("think", "5", task=make_task("2 + 3?"), reward=0.5)
    assert [(m.role, m.text) for m in trajectory.messages] == [
        ("user", "2 + 3?"),
        ("assistant", "think"),
        ("user", "Go on."),
        ("assistant", "5"),
    ]
    assert (trajectory.response, trajectory.turns, trajectory.reward) == ("5", 2, Reward(0.5))
    assert trajectory.samples[0].reward == Reward(0.5)


def test_a_group_has_one_trajectory_per_reward_with_an_id_of_its_own() -> None:
    group = make_group(1.0, None, 0.0)
    assert group.rewards == (1.0, 0.0)
    assert len({trajectory.id for trajectory in group.trajectories}) == 3
    assert group.trajectories[1].reward == Reward(None, "the grader failed")


@pytest.mark.parametrize(("length", "prompt"), [(8, 3), (4, 4), (2, 1)])
def test_samples_train_what_follows_the_prompt(length: int, prompt: int) -> None:
    sample = make_sample(length, prompt=prompt)
    assert (len(sample.tokens), sample.trained_tokens) == (length, length - prompt)
    assert np.array_equal(sample.logprobs != 0, sample.loss_mask == 1)


def test_a_step_is_what_the_trainer_makes_of_groups_with_the_fields_asked_for() -> None:
    batch = make_step_batch([make_group(1.0, 0.0), make_group(0.5, id="group-1")], fields=["reference_logprobs"])
    assert batch.rewards.tolist() == [1.0, 0.0, 0.5]
    assert batch.group_index.tolist() == [0, 0, 1]
    assert batch.proximal_logprobs is None
    assert batch.reference_logprobs is not None
    assert not batch.reference_logprobs[~batch.loss_mask].any()


def test_what_may_not_be_trained_makes_no_step() -> None:
    failed = make_trajectory("5", reward=1.0, status=Status.FAILED)
    group = make_group(1.0)
    with pytest.raises(TrainError, match="may not enter the loss"):
        make_step_batch([type(group)("g", 0, group.task, (failed,))])
    with pytest.raises(ValueError, match="fields must be among"):
        make_step_batch([group], fields=["rewards"])


def test_an_unknown_architecture_says_what_to_set() -> None:
    with pytest.raises(LookupError, match="knows no architecture AcmeForCausalLM; set `architecture`"):
        tiny_config("AcmeForCausalLM")
