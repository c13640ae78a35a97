"""Rewards: a failure is None with a reason, never 0."""

from __future__ import annotations

import asyncio
import threading
import time

import anyio
import anyio.to_thread
import pytest

from miles_core.errors import RolloutError
from miles_core.kinds.base import PluginContext
from miles_core.kinds.reward_models import adapt
from miles_core.lib.plugin_calls import PluginCalls
from miles_core.rollout.scoring import Scorer, WeightedReward
from miles_core.types import Reward, Status

from .conftest import make_trajectory

pytestmark = pytest.mark.anyio


def reward(function, name="r", weight=1.0, timeout=5.0) -> WeightedReward:
    return WeightedReward(name, adapt(function)(None, PluginContext()), weight, timeout)


async def test_the_weighted_sum_keeps_its_components() -> None:
    scorer = Scorer([reward(lambda t: 1.0, "a", 2.0), reward(lambda t: 0.5, "b", -1.0)])
    (scored,) = await scorer.score([make_trajectory("x")])
    assert scored.reward == Reward(1.5, None, {"a": 1.0, "b": 0.5})
    assert scored.samples[0].reward == scored.reward


async def test_one_missing_component_makes_the_sum_missing() -> None:
    scorer = Scorer([reward(lambda t: 1.0, "a"), reward(lambda t: None, "b")])
    (scored,) = await scorer.score([make_trajectory("x")])
    assert scored.reward is not None
    assert scored.reward.value is None
    assert "b:" in (scored.reward.reason or "")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400])
async def test_a_reward_that_is_not_finite_is_missing(value: float) -> None:
    (scored,) = await Scorer([reward(lambda t: value)]).score([make_trajectory("x")])
    assert scored.reward is not None
    assert scored.reward.value is None


async def test_sync_and_async_functions_score_alike() -> None:
    async def slow(trajectory):
        await anyio.lowlevel.checkpoint()
        return 1

    for function in (slow, lambda t: 1):
        (scored,) = await Scorer([reward(function)]).score([make_trajectory("x")])
        assert scored.reward is not None
        assert scored.reward.value == 1.0


async def test_a_grader_that_raises_or_hangs_costs_one_trajectory_its_reward() -> None:
    async def grade(trajectory):
        if trajectory.id == "raises":
            raise RuntimeError("no network")
        if trajectory.id == "hangs":
            await anyio.sleep_forever()
        return 1.0

    names = ["raises", "good", "hangs"]
    scored = await Scorer([reward(grade, timeout=0.2)]).score([make_trajectory(name) for name in names])
    assert [t.reward.value for t in scored if t.reward] == [None, 1.0, None]
    assert "no network" in (scored[0].reward.reason or "")  # type: ignore[union-attr]


async def test_a_blocking_grader_that_hangs_is_abandoned() -> None:
    release = threading.Event()
    started = time.monotonic()
    (scored,) = await Scorer([reward(lambda t: release.wait(60), timeout=0.1)]).score([make_trajectory("x")])
    release.set()
    assert time.monotonic() - started < 10
    assert scored.reward is not None
    assert "longer than 0.1 s" in (scored.reward.reason or "")


@pytest.mark.parametrize("stop", [SystemExit(0), asyncio.CancelledError()])
async def test_a_grader_that_would_end_the_run_only_loses_its_reward(stop: BaseException) -> None:
    async def grade(trajectory):
        raise stop

    (scored,) = await Scorer([reward(grade)]).score([make_trajectory("x")])
    assert scored.reward is not None
    assert type(stop).__name__ in (scored.reward.reason or "")


async def test_a_sum_that_overflows_is_no_reward() -> None:
    (scored,) = await Scorer([reward(lambda t: 1e308, weight=10.0)]).score([make_trajectory("x")])
    assert scored.reward is not None
    assert scored.reward.value is None


async def test_a_graders_own_time_out_keeps_its_words() -> None:
    async def grade(trajectory):
        raise TimeoutError("judge is busy")

    (scored,) = await Scorer([reward(grade)]).score([make_trajectory("x")])
    assert "judge is busy" in (scored.reward.reason or "")  # type: ignore[union-attr]


@pytest.mark.parametrize("value", ["1", True, [1]])
async def test_a_reward_that_is_no_number_names_the_model(value) -> None:
    class Odd:
        scope = "group"

        async def score(self, items):
            return [Reward(value)]

    with pytest.raises(RolloutError, match="reward model odd: a reward's value must be a number"):
        await Scorer([WeightedReward("odd", Odd())]).score([make_trajectory("x")])


async def test_failed_and_aborted_trajectories_are_never_sent_to_a_grader() -> None:
    seen = []
    scorer = Scorer([reward(lambda t: seen.append(t.id) or 1.0)])
    items = [
        make_trajectory("ok"),
        make_trajectory("f", status=Status.FAILED),
        make_trajectory("a", status=Status.ABORTED),
    ]
    scored = await scorer.score(items)
    assert seen == ["ok"]
    assert [t.reward.value for t in scored if t.reward] == [1.0, None, None]


async def test_a_wrong_number_of_rewards_names_the_model_and_both_counts() -> None:
    class Short:
        scope = "group"

        async def score(self, items):
            return [Reward(1.0)]

    with pytest.raises(RolloutError, match="reward model short: .* 3 rewards.*got 1"):
        await Scorer([WeightedReward("short", Short())]).score([make_trajectory(str(i)) for i in range(3)])


async def test_without_models_the_environments_rewards_are_summed() -> None:
    (scored,) = await Scorer([]).score([make_trajectory("x", step_rewards=(0.2, 0.0, 1.0))])
    assert scored.reward == Reward(1.2)


async def test_a_class_may_score_in_a_plain_method_which_runs_in_a_thread() -> None:
    threads = []

    class Plain:
        scope = "group"

        def score(self, items):
            threads.append(threading.get_ident())
            return [Reward(1.0)] * len(items)

    scored = await Scorer([WeightedReward("plain", Plain())]).score([make_trajectory(n) for n in "abc"])
    assert [t.reward.value for t in scored if t.reward] == [1.0] * 3
    assert threads != [threading.get_ident()]


async def test_a_function_gets_group_and_task_only_if_it_takes_them() -> None:
    items = [make_trajectory("a"), make_trajectory("b"), make_trajectory("f", status=Status.FAILED)]

    async def share(trajectory, group):
        return 1 / len(group)

    def labelled(trajectory, *, task):
        return float(task.label)

    scored = await Scorer(
        [reward(lambda sample: 1.0, "plain"), reward(share, "share"), reward(labelled, "task")]
    ).score(items)
    assert scored[0].reward is not None
    assert scored[0].reward.components == {"plain": 1.0, "share": 0.5, "task": 2.0}, "a failed one is in no group"


async def test_a_class_gets_them_too() -> None:
    class Ranked:
        scope = "sample"

        async def score(self, items, *, group):
            return [Reward(float([t.id for t in group].index(items[0].id)))]

    scored = await Scorer([WeightedReward("ranked", Ranked())]).score([make_trajectory(n) for n in "abc"])
    assert [t.reward.value for t in scored if t.reward] == [0.0, 1.0, 2.0]


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def yields(trajectory):
    yield 1.0


@pytest.mark.parametrize(
    ("grade", "reason"),
    [
        (lambda t: (_ for _ in ()).throw(Wordless()), "Wordless (its text cannot be had: RuntimeError)"),
        (lambda t: (_ for _ in ()).throw(ValueError("x" * 10_000_000)), "ValueError: xxx"),
        (lambda t: (_ for _ in ()).throw(KeyboardInterrupt()), "it raised KeyboardInterrupt"),
        (yields, "TypeError: float() argument must be"),
        (lambda t: "good", "ValueError: could not convert string to float: 'good'"),
        (lambda t: t.samples[0].tokens, "TypeError: only"),
    ],
)
async def test_whatever_a_function_does_costs_one_reward_with_a_short_reason(grade, reason: str) -> None:
    (scored,) = await Scorer([reward(grade)]).score([make_trajectory("x")])
    assert scored.reward is not None
    assert scored.reward.value is None
    assert reason in (scored.reward.reason or "")
    assert len(scored.reward.reason or "") < 600


async def test_reasons_and_errors_name_the_plugin_and_its_distribution() -> None:
    def calls() -> PluginCalls:
        return PluginCalls("acme-kit/exact", "reward model exact (acme-kit 1.2)")

    class Broken:
        scope = "group"
        answer: tuple[None, ...] | list[None] = ()

        async def score(self, items):
            return self.answer

    broken = Broken()
    for answer, words in (([None], "must return Reward objects; got NoneType"), ([], "must return 1 rewards")):
        broken.answer = answer
        with pytest.raises(RolloutError, match=rf"reward model exact \(acme-kit 1\.2\): score\(\) {words}"):
            await Scorer([WeightedReward("r", broken, calls=calls())]).score([make_trajectory("x")])
    failing = adapt(lambda t: 1 / 0)(None, PluginContext())
    (scored,) = await Scorer([WeightedReward("r", failing, calls=calls())]).score([make_trajectory("x")])
    assert scored.reward is not None
    assert scored.reward.reason == "reward model exact (acme-kit 1.2): ZeroDivisionError: division by zero"


async def test_blocking_graders_run_side_by_side_and_leave_the_loop_free() -> None:
    together, loop_runs = threading.Barrier(32 + 1), threading.Event()

    def blocks(_: object) -> float:
        together.wait(30)  # broken unless all 32 are here at once
        return float(loop_runs.wait(30))  # set by the event loop, which a grader in it would hold up

    async def beat() -> None:
        await anyio.to_thread.run_sync(together.wait, 30)
        loop_runs.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        scored = await Scorer([reward(blocks)]).score([make_trajectory(str(i)) for i in range(32)])
    assert [t.reward.value for t in scored if t.reward] == [1.0] * 32


async def test_graders_that_hang_fail_alone_and_keep_no_slot() -> None:
    release = threading.Event()

    def grade(trajectory):
        return release.wait(60) and 1.0 if int(trajectory.id) < 64 else 1.0

    scored = await Scorer([reward(grade, timeout=0.3)]).score([make_trajectory(str(i)) for i in range(96)])
    release.set()
    values = [t.reward.value for t in scored if t.reward]
    assert values == [None] * 64 + [1.0] * 32, "two waves of 32 hang, and the rest has room after them"
