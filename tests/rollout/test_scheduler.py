"""One step's rollout: order, seeds, sharing, and total failure."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from miles_core.errors import RolloutError
from miles_core.kinds.environments import Step
from miles_core.rollout.budget import Budget
from miles_core.rollout.environment import EnvironmentRunner
from miles_core.rollout.filtering import FilterChain
from miles_core.rollout.scheduler import RolloutScheduler, RolloutSettings
from miles_core.rollout.scoring import Scorer
from miles_core.rollout.seeds import seed_of
from miles_core.session.session import TokenSession
from miles_core.types import Message, Task

from .conftest import ScriptedEngine

pytestmark = pytest.mark.anyio
BUDGET = Budget(max_turns=1, max_context_tokens=100, max_response_tokens=50, max_new_tokens=20)


class Tasks:
    def __init__(self, *tasks: Task) -> None:
        self.tasks, self.at = tasks, 0

    def __len__(self) -> int:
        return len(self.tasks)

    def take(self, count: int):
        taken = [divmod(i, len(self.tasks)) for i in range(self.at, self.at + count)]
        self.at += count
        return [(epoch, self.tasks[index]) for epoch, index in taken]


class Recording:
    """Ends after one turn; later tasks end first."""

    seeds: list[tuple[str, int]]

    def __init__(self, seeds, gates) -> None:
        self.seeds, self.gates = seeds, gates

    async def reset(self, task, seed):
        self.task = task
        self.seeds.append((task.id, seed))

    async def step(self, response):
        mine, before = self.gates[self.task.id]
        if before is not None:
            await before.wait()
        mine.set()
        return Step(done=True, reward=1.0)

    def close(self):
        pass


def make(chat, tasks, environments, group_size=2, engine=None) -> RolloutScheduler:
    engine = engine or ScriptedEngine(chat, *["ok"] * 100)
    settings = RolloutSettings(len(tasks), group_size, 100, 1.0, seed=0)
    session = partial(TokenSession, chat, engine, None)
    return RolloutScheduler(Tasks(*tasks), environments, session, Scorer([]), FilterChain([]), BUDGET, settings)


def simple(name: str, environment: str | None = None) -> Task:
    return Task(name, (Message("user", name),), environment=environment)


async def test_groups_keep_the_order_of_tasks_whatever_finishes_first(chat) -> None:
    seeds: list = []
    gates: dict = {}
    before = None
    for name in "cba":
        gates[name] = (anyio.Event(), before)
        before = gates[name][0]
    runner = lambda: EnvironmentRunner(Recording(seeds, gates), "env", 5.0)  # noqa: E731
    step = await make(chat, [simple(n) for n in "abc"], {"env": runner}).step(0)
    assert [g.task.id for g in step.groups] == ["a", "b", "c"]
    assert step.rewards == [1.0] * 6


async def test_a_group_shares_its_environment_seed_and_no_two_turns_share_a_sampling_seed(chat) -> None:
    seeds: list = []
    gates = {name: (anyio.Event(), None) for name in "ab"}
    engine = ScriptedEngine(chat, *["ok"] * 100)
    scheduler = make(
        chat,
        [simple("a"), simple("b")],
        {"env": lambda: EnvironmentRunner(Recording(seeds, gates), "env", 5.0)},
        engine=engine,
    )
    await scheduler.step(0)
    assert len(set(seeds)) == 2
    sampling = [request.sampling.sampling_seed for request in engine.requests]
    assert len(set(sampling)) == 4
    await scheduler.step(1)
    assert len({request.sampling.sampling_seed for request in engine.requests}) == 8, "a new epoch has new seeds"


def test_seeds_are_the_same_in_every_process_and_in_range() -> None:
    assert [seed_of(0, 0, "t0"), seed_of(0, 0, "t0", 1, 0)] == [1505458159, 2028427842]
    assert all(0 <= seed_of(i, "x") < 2**31 for i in range(1000))


async def test_an_unknown_environment_of_a_task_lists_the_configured_ones(chat) -> None:
    runner = lambda: EnvironmentRunner(Recording([], {}), "env", 5.0)  # noqa: E731
    with pytest.raises(ExceptionGroup) as caught:
        await make(chat, [simple("a", "chess")], {"env": runner}, group_size=1).step(0)
    assert caught.group_contains(RolloutError, match="'chess'; configured: env")


async def test_a_step_whose_every_trajectory_failed_is_an_error_with_the_first_cause(chat) -> None:
    class Broken:
        async def reset(self, task, seed):
            raise OSError("no sandbox")

        async def step(self, response): ...

        async def close(self): ...

    with pytest.raises(RolloutError, match="none of the step's 4 trajectories.*4 failed.*no sandbox"):
        await make(chat, [simple("a"), simple("b")], {"env": lambda: EnvironmentRunner(Broken(), "env", 5.0)}).step(0)
