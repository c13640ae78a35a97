"""Groups: seeds, sharing, environments, and what survives when the work is stopped."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from miles_core.errors import RolloutError
from miles_core.kinds.environments import Step
from miles_core.rollout.budget import Budget
from miles_core.rollout.environment import EnvironmentRunner
from miles_core.rollout.groups import GroupRunner, GroupSettings, GroupWork
from miles_core.rollout.scoring import Scorer
from miles_core.rollout.seeds import seed_of
from miles_core.rollout.tasks import Pending
from miles_core.session.session import TokenSession
from miles_core.types import Message, Status, Task

from .conftest import ScriptedEngine, make_trajectory

pytestmark = pytest.mark.anyio
BUDGET = Budget(max_turns=1, max_context_tokens=100, max_response_tokens=50, max_new_tokens=20)


class Recording:
    """Ends after one turn, once its gate is open; notes its seeds."""

    def __init__(self, seeds, gate: anyio.Event | None = None) -> None:
        self.seeds, self.gate = seeds, gate

    async def reset(self, task, seed):
        self.seeds.append((task.id, seed))

    async def step(self, response):
        if self.gate is not None:
            await self.gate.wait()
        return Step(done=True, reward=1.0)

    async def close(self): ...


def make(chat, environment, group_size=2, engine=None) -> GroupRunner:
    session = partial(TokenSession, chat, engine or ScriptedEngine(chat, *["ok"] * 100), None)
    runner = {"env": lambda: EnvironmentRunner(environment(), "env", 5.0)}
    return GroupRunner(runner, session, Scorer([]), BUDGET, GroupSettings(group_size, 100, 1.0, seed=0))


def work(name: str, epoch: int = 0, environment: str | None = None, **options) -> GroupWork:
    task = Task(name, (Message("user", name),), environment=environment)
    return GroupWork(f"s0-{name}", 0, Pending(epoch, task, **options))


async def test_a_group_shares_its_environment_seed_and_no_two_turns_share_a_sampling_seed(chat) -> None:
    seeds: list = []
    engine = ScriptedEngine(chat, *["ok"] * 100)
    runner = make(chat, lambda: Recording(seeds), engine=engine)
    for item in (work("a"), work("b"), work("a", epoch=1)):
        await runner.run(item)
    assert [name for name, _ in seeds] == ["a", "a", "b", "b", "a", "a"]
    assert len({seed for _, seed in seeds}) == 3, "one per task and epoch"
    assert len({request.sampling.sampling_seed for request in engine.requests}) == 6


def test_seeds_are_the_same_in_every_process_and_in_range() -> None:
    assert [seed_of(0, 0, "t0"), seed_of(0, 0, "t0", 1, 0)] == [1505458159, 2028427842]
    assert all(0 <= seed_of(i, "x") < 2**31 for i in range(1000))


async def test_an_unknown_environment_of_a_task_lists_the_configured_ones(chat) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await make(chat, lambda: Recording([]), group_size=1).run(work("a", environment="chess"))
    assert caught.group_contains(RolloutError, match="'chess'; configured: env")


async def test_a_continued_group_generates_only_what_is_missing(chat) -> None:
    engine = ScriptedEngine(chat, *["ok"] * 100)
    item = work("a", done={1: make_trajectory("before", 0.5)})
    await make(chat, lambda: Recording([]), group_size=3, engine=engine).run(item)
    assert [t.id for t in item.group.trajectories] == ["s0-a-t0", "before", "s0-a-t2"]
    assert len(engine.requests) == 2


async def test_stopped_work_keeps_the_trajectories_that_are_done(chat) -> None:
    gates = iter([None, anyio.Event()])
    item = work("a")
    with anyio.move_on_after(0.2) as scope:
        await make(chat, lambda: Recording([], next(gates))).run(item)
    assert scope.cancelled_caught
    assert item.group is None
    assert list(item.unfinished().done) == [0]
    assert item.unfinished().tries == 0, "being stopped is no failed try"


async def test_a_retry_gives_up_only_the_aborted_trajectories() -> None:
    item = work("a", tries=1)
    item.done.update({0: make_trajectory("x", 1.0), 1: make_trajectory("y", status=Status.ABORTED)})
    retry = item.retry()
    assert (list(retry.done), retry.tries) == ([0], 2)
