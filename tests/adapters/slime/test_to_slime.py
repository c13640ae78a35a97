from __future__ import annotations

import importlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from miles_core.adapters.slime.from_slime import trainable_sample
from miles_core.adapters.slime.sample import Sample
from miles_core.adapters.slime.to_slime import group_samples, task_sample, trajectory_sample
from miles_core.testing.builders import make_group, make_task, make_trajectory
from miles_core.types import SamplingParams, Status

if TYPE_CHECKING:
    from conftest import Slime

MILES_TYPES = """
from dataclasses import dataclass, field

from miles_core.adapters.slime.sample import Sample as Base

@dataclass
class WeightVersionSpan:
    version: str
    abs_start: int
    abs_end: int

@dataclass
class WeightVersionsPerCall:
    spans: list = field(default_factory=list)

@dataclass
class Sample(Base):
    pass
"""


@dataclass
class FakeEpisode:
    """What the conversion back asks of an episode."""

    task: Any
    id: str = "trajectory-0"
    evaluation: bool = False
    asked: list[int] = field(default_factory=list)

    def sampling(self, turn: int) -> SamplingParams:
        self.asked.append(turn)
        return SamplingParams(temperature=1.0, sampling_seed=turn)


def test_a_trajectory_becomes_a_sample_with_slimes_names() -> None:
    task = make_task("2 + 3?", "5", metadata={"source": {"page": [1, 2]}})
    trajectory = make_trajectory("four", "5", task=task, observation="No.", reward=0.5, version=6)
    sample = trajectory_sample(trajectory)
    ours = trajectory.samples[0]
    assert sample.prompt == [{"role": "user", "content": "2 + 3?"}]
    assert (sample.label, sample.reward, sample.response) == ("5", 0.5, "four\nNo.\n5")
    assert sample.tokens == ours.tokens.tolist()
    assert (sample.response_length, sample.loss_mask) == (5, [1] * 5)
    assert sample.rollout_log_probs == pytest.approx(ours.logprobs[3:].tolist())
    assert (sample.status, sample.weight_versions) == (Sample.Status.COMPLETED, ["6"])
    assert sample.metadata == {"source": {"page": [1, 2]}}
    assert [message["role"] for message in sample.messages] == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_a_counterpart(status: Status) -> None:
    assert trajectory_sample(make_trajectory("a", status=status)).status.value == status.value


def test_members_of_a_group_have_their_places() -> None:
    samples = group_samples(make_group(1.0, 0.0, index=3))
    assert [(sample.group_index, sample.index, sample.reward) for sample in samples] == [(3, 0, 1.0), (3, 1, 0.0)]


def test_what_a_generate_function_left_in_info_comes_back_as_metadata_and_attributes() -> None:
    info = {"calls": 2, "slime_attributes": {"tool_call_count": 3}}
    trajectory = replace(make_trajectory("a", task=make_task(metadata={"hint": "h"})), info=info)
    sample = trajectory_sample(trajectory)
    assert (sample.metadata, sample.tool_call_count) == ({"hint": "h", "calls": 2}, 3)


def test_a_task_becomes_a_pending_sample() -> None:
    sample = task_sample(make_task(), session_id="x")
    assert (sample.status, sample.tokens, sample.session_id) == (Sample.Status.PENDING, [], "x")


def test_there_and_back_a_sample_is_the_same() -> None:
    trajectory = make_trajectory("a", version=4)
    ours = trajectory.samples[0]
    back = trainable_sample(trajectory_sample(trajectory), Status.COMPLETED, FakeEpisode(trajectory.task))  # type: ignore[arg-type]
    assert back.tokens.tolist() == ours.tokens.tolist()
    assert back.loss_mask.tolist() == ours.loss_mask.tolist()
    assert back.logprobs.tolist() == ours.logprobs.tolist()
    assert back.versions == ours.versions
    assert [(turn.start, turn.end) for turn in back.turns] == [(turn.start, turn.end) for turn in ours.turns]


def test_a_class_of_miles_gets_and_gives_its_own_spans_of_versions(slime: Slime) -> None:
    slime.module("miles_like_types", MILES_TYPES)
    cls = importlib.import_module("miles_like_types").Sample
    trajectory = make_trajectory("a", version=4)
    sample = trajectory_sample(trajectory, cls)
    (call,) = sample.weight_versions
    assert (call.spans[0].version, call.spans[0].abs_start, call.spans[0].abs_end) == ("4", 3, 8)
    back = trainable_sample(sample, Status.COMPLETED, FakeEpisode(trajectory.task))  # type: ignore[arg-type]
    assert back.versions == trajectory.samples[0].versions
