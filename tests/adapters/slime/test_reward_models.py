from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from miles_core.errors import PluginError
from miles_core.lib.plugin_calls import PluginCalls
from miles_core.rollout.scoring import Scorer, WeightedReward
from miles_core.testing.builders import make_task, make_trajectory
from miles_core.types import Reward

if TYPE_CHECKING:
    from conftest import Slime

FUNCTIONS = """
import asyncio

async def length(args, sample, **kwargs):
    await asyncio.sleep(0)
    return len(sample.response) / args.rollout_max_response_len

def plain(args, sample):
    return len(sample.response) / 16

async def by_rank(args, samples, **kwargs):
    order = sorted(range(len(samples)), key=lambda i: len(samples[i].response))
    return [float(order.index(i)) for i in range(len(samples))]

async def judged(args, sample):
    return {"score": 0.5, "format": 1.0}

def missing(args, sample):
    return None

def text(args, sample):
    return "1.0"

def broken(args, sample):
    raise ValueError("the judge is down")

def tensor(args, sample):
    import numpy
    return numpy.float32(0.25)

def passed(args, sample):
    return sample.response == "yes"

def post_process(args, samples):
    raw = [sample.reward for sample in samples]
    return raw, raw

def short(args, samples):
    return [1.0]

def reads_what_is_not_there(args, sample):
    return args.judge_url

def takes_too_much(args, sample, tokenizer):
    return 1.0

def vandal(args, sample):
    sample.tokens.clear()
    sample.loss_mask[:] = [0] * len(sample.loss_mask)
    sample.metadata["hints"].append("x")
    sample.messages[0]["content"] = "another question"
    sample.reward = 100.0
    return 1.0
"""


async def scores(slime: Slime, name: str, *responses: str, **options: object) -> list[Reward]:
    """What the scorer makes of a function's rewards for a group of these responses."""
    model = slime.make("reward_models", FUNCTIONS, name, dict(options))
    trajectories = [make_trajectory(response, id=f"t{i}") for i, response in enumerate(responses or ("four", "5"))]
    scored = await Scorer([WeightedReward("slime", model)]).score(trajectories)
    return [trajectory.reward for trajectory in scored if trajectory.reward is not None]


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["length", "plain"])
async def test_async_and_sync_functions_give_the_same_rewards(slime: Slime, name: str) -> None:
    assert [reward.value for reward in await scores(slime, name)] == [4 / 16, 1 / 16]


@pytest.mark.anyio
async def test_a_function_whose_parameter_is_called_samples_gets_the_group_at_once(slime: Slime) -> None:
    assert [reward.value for reward in await scores(slime, "by_rank", "ccc", "a", "bb")] == [2.0, 0.0, 1.0]


@pytest.mark.anyio
async def test_the_scope_of_the_table_goes_before_the_name_of_the_parameter(slime: Slime) -> None:
    rewards = await scores(slime, "plain", scope="group")
    assert [reward.value for reward in rewards] == [None, None]
    assert "'list' object has no attribute 'response'" in str(rewards[0].reason)


@pytest.mark.anyio
async def test_reward_key_picks_the_entry_of_a_mapping(slime: Slime) -> None:
    assert [reward.value for reward in await scores(slime, "judged", reward_key="score")] == [0.5, 0.5]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("judged", {}, "the function returned a mapping of score, format; set reward_key in the table"),
        ("judged", {"reward_key": "value"}, "it lacks 'value'"),
        ("missing", {}, "the reward function returned None"),
        ("text", {}, "must return a number, a mapping or None; got '1.0'"),
        ("broken", {}, "the judge is down"),
        ("short", {}, "must return one reward per sample, 2; got 1"),
        ("post_process", {}, "returned two lists, as a reward post-process does"),
        ("reads_what_is_not_there", {}, "args has no 'judge_url'; write judge_url = ... into the plugin's table"),
    ],
)
async def test_what_is_no_reward_is_none_with_the_reason_and_never_zero(
    slime: Slime, name: str, options: dict[str, object], reason: str
) -> None:
    rewards = await scores(slime, name, **options)
    assert [reward.value for reward in rewards] == [None, None]
    for reward in rewards:
        assert reason in str(reward.reason)


@pytest.mark.anyio
async def test_options_of_the_table_become_arguments(slime: Slime) -> None:
    model = slime.make("reward_models", "def rm(args, sample): return args.bonus[0]", "rm", {"bonus": [2.5]})
    assert await model.score([make_trajectory("a")]) == [Reward(2.5)]


@pytest.mark.anyio
@pytest.mark.parametrize(("name", "response", "value"), [("tensor", "a", 0.25), ("passed", "yes", 1.0)])
async def test_numbers_of_other_libraries_and_truth_values_count(
    slime: Slime, name: str, response: str, value: float
) -> None:
    assert [reward.value for reward in await scores(slime, name, response)] == [value]


def test_another_signature_is_refused_before_the_run_with_both_signatures(slime: Slime) -> None:
    expected = r"takes_too_much.*calls custom_rm\(args, sample\).*here is takes_too_much\(args, sample, tokenizer\)"
    with pytest.raises(PluginError, match=expected):
        slime.make("reward_models", FUNCTIONS, "takes_too_much")


def test_a_class_is_refused(slime: Slime) -> None:
    with pytest.raises(PluginError, match=r"adapts functions; Judge is a class"):
        slime.make("reward_models", "class Judge:\n    def __call__(self, args, sample): return 1.0", "Judge")


@pytest.mark.anyio
async def test_a_function_cannot_change_what_is_trained(slime: Slime) -> None:
    model = slime.make("reward_models", FUNCTIONS, "vandal")
    trajectory = make_trajectory("a", task=make_task(metadata={"hints": ["h"]}), reward=0.5)
    before = (trajectory.samples[0].tokens.tolist(), trajectory.samples[0].loss_mask.tolist(), trajectory.messages)
    assert await model.score([trajectory]) == [Reward(1.0)]
    sample = trajectory.samples[0]
    assert (sample.tokens.tolist(), sample.loss_mask.tolist(), trajectory.messages) == before
    assert trajectory.task.metadata == {"hints": ("h",)}
    assert trajectory.reward == Reward(0.5)


@pytest.mark.anyio
async def test_many_calls_at_once_do_not_wait_for_each_other(slime: Slime) -> None:
    meeting = """
        import asyncio
        waiting = []

        async def rm(args, sample):
            waiting.append(sample)
            while len(waiting) < 3:
                await asyncio.sleep(0)
            return 1.0
    """
    model = slime.make("reward_models", meeting, "rm")
    trajectories = [make_trajectory("a", id=f"t{i}") for i in range(3)]
    async with asyncio.timeout(5):
        scored = await Scorer([WeightedReward("slime", model)]).score(trajectories)
    assert [trajectory.reward and trajectory.reward.value for trajectory in scored] == [1.0] * 3


@pytest.mark.anyio
async def test_blocking_functions_take_no_more_threads_than_the_scorer_allows(slime: Slime) -> None:
    counting = """
        import threading
        barrier, running = threading.Barrier(2), []

        def rm(args, sample):
            running.append(sample)
            seen = len(running)
            barrier.wait(5)
            running.remove(sample)
            barrier.wait(5)
            return float(seen)
    """
    model = slime.make("reward_models", counting, "rm")
    calls = PluginCalls("rm", threads=2)
    trajectories = [make_trajectory("a", id=f"t{i}") for i in range(8)]
    scored = await Scorer([WeightedReward("slime", model, calls=calls)]).score(trajectories)
    values = [trajectory.reward and trajectory.reward.value for trajectory in scored]
    assert len(values) == 8
    assert all(value is not None and 1 <= value <= 2 for value in values)


def test_a_module_that_imports_slime_says_so_where_it_is_not_installed(slime: Slime) -> None:
    source = "from slime.utils.types import Sample\ndef rm(args, sample: Sample): return 1.0"
    with pytest.raises(PluginError, match=r"No module named 'slime'") as raised:
        slime.make("reward_models", source, "rm")
    assert "Install the package that holds slime" in str(raised.value)
