from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from miles_core.adapters.slime.sample import Sample, sample_class
from miles_core.testing.builders import make_group, make_trajectory
from miles_core.types import VersionSpan

if TYPE_CHECKING:
    from conftest import Slime

STOP = {"finish_reason": {"type": "stop"}, "weight_version": "3"}
TYPES = """
from dataclasses import dataclass, field
from enum import Enum

@dataclass
class Sample:
    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"

    index: int | None = None
    prompt: list = field(default_factory=list)
    tokens: list = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    reward: float | None = None
    label: str | None = None
    metadata: dict = field(default_factory=dict)
    status: Status = Status.PENDING
"""


def test_generated_and_foreign_tokens_are_appended_with_mask_logprobs_and_versions() -> None:
    sample = Sample(tokens=[1, 2])
    sample.append_response_tokens(None, tokens=[5, 6], log_probs=[-0.5, -0.25], meta_info=STOP, text="ab")
    sample.append_response_tokens(None, tokens=[7], trainable=False, text="c")
    assert (sample.tokens, sample.response, sample.response_length) == ([1, 2, 5, 6, 7], "abc", 3)
    assert (sample.loss_mask, sample.rollout_log_probs) == ([1, 1, 0], [-0.5, -0.25, 0.0])
    assert (sample.weight_versions, sample.version_spans) == (["3"], [VersionSpan(3, 2, 4)])
    assert (sample.status, sample.effective_response_length) == (Sample.Status.COMPLETED, 2)


def test_an_update_of_the_weights_within_a_generation_keeps_its_place() -> None:
    sample = Sample(tokens=[1])
    spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}]
    meta = {"finish_reason": {"type": "length"}, "weight_versions": spans}
    sample.append_response_tokens(None, tokens=[5, 6], log_probs=[-1, -1], meta_info=meta)
    assert sample.version_spans == [VersionSpan(3, 1, 2), VersionSpan(4, 2, 3)]
    assert sample.status is Sample.Status.TRUNCATED


def test_generated_tokens_without_logprobs_are_refused() -> None:
    with pytest.raises(ValueError, match="2 generated tokens need as many log_probs; got 0"):
        Sample().append_response_tokens(None, tokens=[5, 6])


def test_tokens_that_were_there_without_logprobs_do_not_pass_for_certain_ones() -> None:
    sample = Sample(tokens=[1, 2], response_length=1)
    sample.append_response_tokens(None, tokens=[5], log_probs=[-0.5], meta_info=STOP)
    assert sample.rollout_log_probs is not None
    assert math.isnan(sample.rollout_log_probs[0])


def test_the_first_weights_are_version_0() -> None:
    sample = Sample()
    sample.update_from_meta_info(None, {"finish_reason": {"type": "abort"}, "weight_version": "default"})
    assert (sample.weight_versions, sample.status) == (["0"], Sample.Status.ABORTED)


@pytest.mark.anyio
async def test_a_function_that_imports_slimes_sample_gets_slimes_sample(slime: Slime) -> None:
    for package in ("slime", "slime.utils"):
        slime.module(f"{package}.__init__", "")
    slime.module("slime.utils.types", TYPES)
    source = """
        from slime.utils.types import Sample

        def rm(args, sample):
            return float(isinstance(sample, Sample) and sample.status == Sample.Status.COMPLETED)
    """
    model = slime.make("reward_models", source, "rm")
    rewards = await model.score([make_trajectory("a")])
    assert rewards[0].value == 1.0


def test_ours_is_the_class_where_nobody_imported_another() -> None:
    assert sample_class(make_group) is Sample


def test_reading_a_reward_takes_the_key_only_of_a_mapping() -> None:
    class Args:
        reward_key = "score"

    args: Any = Args()
    assert Sample(reward={"score": 0.5}).get_reward_value(args) == 0.5
    assert Sample(reward=1.0).get_reward_value(args) == 1.0
