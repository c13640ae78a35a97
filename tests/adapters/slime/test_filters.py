from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from miles_core.errors import PluginError, RolloutError
from miles_core.kinds.filters import Verdict
from miles_core.testing.builders import make_group, make_trajectory

if TYPE_CHECKING:
    from conftest import Slime

FUNCTIONS = """
from dataclasses import dataclass

import numpy

@dataclass
class Output:
    keep: object
    reason: str | None = None

def nonzero_std(args, samples, **kwargs):
    rewards = [sample.get_reward_value(args) for sample in samples]
    keep = numpy.std(rewards) > 1e-6
    return Output(keep, None if keep else f"zero std/{rewards[0]}")

def enough(args, samples):
    return len(samples) >= args.n_samples_per_prompt

def nothing(args, samples):
    return None

def number(args, samples):
    return 1

async def slow(args, samples):
    return True

def drop_long(args, groups):
    for group in groups:
        for sample in group:
            sample.remove_sample = sample.response_length > args.longest

def select(args, samples):
    samples[0][0].remove_sample = True

def first(args, rollout_id, buffer, num_samples):
    return buffer[:num_samples]

def mutate(args, samples):
    for sample in samples:
        sample.tokens.clear()
    samples.clear()
    return True
"""


def test_a_dynamic_sampling_filter_judges_groups_and_gives_its_reason(slime: Slime) -> None:
    judge = slime.make("filters", FUNCTIONS, "nonzero_std")
    assert judge.stage == "group"
    assert judge.keep(make_group(1.0, 0.0)) == Verdict(True)
    assert judge.keep(make_group(0.5, 0.5)) == Verdict(False, "zero_std_0.5")


def test_a_drop_without_a_reason_has_the_functions_name(slime: Slime) -> None:
    judge = slime.make("filters", FUNCTIONS, "enough")
    assert judge.keep(make_group(1.0, 0.0)) == Verdict(False, "enough")
    assert judge.keep(make_group(*[1.0] * 8)).keep


def test_a_function_of_groups_removes_single_samples(slime: Slime) -> None:
    judge = slime.make("filters", FUNCTIONS, "drop_long", {"longest": 4})
    assert judge.stage == "sample"
    assert judge.keep(make_trajectory("a", length=7)) == Verdict(True)
    assert judge.keep(make_trajectory("a", length=8)) == Verdict(False, "drop_long")


def test_the_stage_of_the_table_goes_before_the_name_of_the_parameter(slime: Slime) -> None:
    judge = slime.make("filters", FUNCTIONS, "select", {"stage": "sample"})
    assert judge.keep(make_trajectory("a")) == Verdict(False, "select")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nothing", {}, r'(?s)returned None.*Set stage = "sample"'),
        ("number", {}, "must return a bool, or an object with keep and reason; got 1"),
        ("nonzero_std", {"stage": "sample"}, r"object of type 'list'|'list' object has no attribute"),
        ("enough", {"stage": "sample"}, r'(?s)returns None; got False.*Set stage = "group"'),
    ],
)
def test_what_is_no_verdict_is_an_error_and_neither_keeps_nor_drops(
    slime: Slime, name: str, options: dict[str, str], message: str
) -> None:
    judge = slime.make("filters", FUNCTIONS, name, options)
    item = make_trajectory("a") if options else make_group()
    with pytest.raises((RolloutError, AttributeError), match=message):
        judge.keep(item)


@pytest.mark.parametrize(
    ("name", "message"),
    [("first", r'(?s)does not adapt buffer filters.*Write a filter with stage = "buffer"'), ("slow", "without await")],
)
def test_what_cannot_be_run_faithfully_is_refused_before_the_run(slime: Slime, name: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        slime.make("filters", FUNCTIONS, name)


def test_a_filter_cannot_change_what_is_trained(slime: Slime) -> None:
    group = make_group(1.0, 0.0)
    before = [trajectory.samples[0].tokens.tolist() for trajectory in group.trajectories]
    assert slime.make("filters", FUNCTIONS, "mutate").keep(group).keep
    assert [trajectory.samples[0].tokens.tolist() for trajectory in group.trajectories] == before
