"""What every environment must keep."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import pytest

from miles_core.errors import RolloutError
from miles_core.kinds.environments import is_agent
from miles_core.rollout.environment import EnvironmentRunner
from miles_core.testing.builders import make_task
from miles_core.testing.context import Services
from miles_core.testing.suites.base import PluginSuite
from miles_core.testing.suites.checks import photograph, within
from miles_core.types import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.types import Task


@dataclass
class Played:
    """What an episode showed: the first message, and a message with reward and end of each step."""

    first: Message | None = None
    steps: list[tuple[Message | None, float, bool, bool]] = field(default_factory=list)


class EnvironmentSuite(PluginSuite):
    """Conformance of environments that take turns; of agents, whose conversations are their own, what loading shows.

    ``tasks`` are tasks that it can play; ``responses`` are what the policy says, turn by turn, in every episode.
    ``deterministic = False`` is for environments that reach out to what no seed governs.
    """

    kind = "environments"
    tasks: ClassVar[Sequence[Task]] = (make_task(),)
    responses: ClassVar[Sequence[str]] = ("hello", "5", "", "a very long answer " * 50, "done")
    deterministic: ClassVar[bool] = True

    @pytest.fixture(autouse=True)
    def _only_turns(self, request: pytest.FixtureRequest) -> None:
        """Skip what only environments that take turns must keep."""
        if request.function.__qualname__.startswith("EnvironmentSuite.") and is_agent(self.hub.load(self.ref)):
            pytest.skip("an agent takes no turns")

    def default_services(self) -> dict[str, Any]:
        """The policy's tokenizer, beside what all plugins get: here the toy tokenizer."""
        return Services(super().default_services())

    async def play(
        self, environment: Any = None, *, task: Task | None = None, seed: int = 7, close: bool = True
    ) -> Played:
        """One episode as a run plays it, to its end or that of the script."""
        environment = environment or self.make()
        runner = self._runner(environment)
        played = Played(await runner.reset(task or self.tasks[0], seed))
        for response in self.responses:
            step = await runner.step(Message("assistant", response))
            shown = None if step.observation is None else await runner.message(step.observation)
            played.steps.append((shown, step.reward, step.done, step.truncated))
            if step.done or step.truncated:
                break
        if close:
            await within(self.time_limit, environment.close)
        return played

    async def test_reset_returns_an_observation_or_none(self) -> None:
        """``reset(task, seed)`` returns an ``Observation``, text, a JSON value, or ``None`` for nothing to add."""
        for task in self.tasks:
            environment = self.make()
            try:
                await self._runner(environment).reset(task, 7)
            except RolloutError as error:
                self._broken(error, "Return Observation(text), or None.")
            await within(self.time_limit, environment.close)

    async def test_step_returns_a_step(self) -> None:
        """``step`` returns a ``Step`` with a finite reward, and an observation unless the episode ends."""
        for task in self.tasks:
            try:
                await self.play(task=task)
            except RolloutError as error:
                self._broken(error, "Return Step(observation, done=..., reward=...).")

    async def test_observations_have_declared_roles(self) -> None:
        """It answers in the roles of ``observation_roles``: a chat template that lacks one is refused at start-up."""
        environment = self.make()
        roles = tuple(getattr(environment, "observation_roles", ("user",)))
        played = await self.play(environment)
        shown = [played.first, *(step[0] for step in played.steps)]
        for message in shown:
            self.check(
                message is None or message.role in roles,
                expected=f"a role among {roles}",
                got=getattr(message, "role", None),
                remedy="Declare it: observation_roles = (...).",
            )

    async def test_the_same_seed_plays_the_same_episode(self) -> None:
        """Two objects with one task, seed and script show the same: the samples of a group start alike."""
        self._only_deterministic()
        for task in self.tasks:
            self._check_same(await self.play(task=task), await self.play(task=task), "a second object")

    async def test_episodes_do_not_share_state(self) -> None:
        """Many objects at once play as one alone: a run plays all trajectories concurrently."""
        self._only_deterministic()
        alone = [await self.play(task=task) for task in self.tasks]
        together: list[tuple[int, Played]] = []

        async def one(number: int) -> None:
            together.append((number, await self.play(task=self.tasks[number])))

        async with anyio.create_task_group() as tasks:
            for number in [*range(len(self.tasks))] * 4:
                tasks.start_soon(one, number)
        for number, played in together:
            self._check_same(alone[number], played, "episodes that overlap")

    async def test_reset_starts_over(self) -> None:
        """After ``reset`` an object plays as a fresh one: a failed turn is retried by reset and replay."""
        self._only_deterministic()
        environment = self.make()
        first = await self.play(environment, close=False)
        self._check_same(first, await self.play(environment), "the same object after reset()")

    async def test_close_is_safe_at_any_moment(self) -> None:
        """``close`` works before ``reset``, after it and in mid-episode: an episode may fail or be cancelled."""
        for turns in range(3):
            environment = self.make()
            runner = self._runner(environment)
            if turns:
                await runner.reset(self.tasks[0], 7)
            if turns > 1:
                await runner.step(Message("assistant", self.responses[0]))
            try:
                await within(self.time_limit, environment.close)
            except Exception as error:  # noqa: BLE001 - whatever it raised
                when = ("before reset()", "after reset()", "after a step")[turns]
                self.check(
                    False, expected=f"a close() that works {when}", got=repr(error), remedy="Release only what is held."
                )

    async def test_does_not_change_its_task(self) -> None:
        """The task is the same afterwards: all trajectories of a group get the same object."""
        for task in map(copy.deepcopy, self.tasks):
            before, environment = photograph(task), self.make()
            # not the read-only copy that a run gives: here a change shall show
            await within(self.time_limit, environment.reset, task, 7)
            await self._runner(environment).step(Message("assistant", self.responses[0]))
            await within(self.time_limit, environment.close)
            self.check(
                photograph(task) == before,
                expected="an unchanged task",
                got="a task that differs after an episode",
                remedy="Copy what you change in reset().",
            )

    async def test_survives_whatever_the_policy_says(self) -> None:
        """Nonsense is played, not raised: an untrained policy says anything."""
        for nonsense in ("", " \n\t", "\x00\u202e🙂", "{" * 200, "x" * 20_000):
            environment = self.make()
            runner = self._runner(environment)
            await runner.reset(self.tasks[0], 7)
            try:
                await runner.step(Message("assistant", nonsense))
            except RolloutError as error:
                self._broken(error, "Answer with an observation that says what is wrong, or end the episode.")
            finally:
                await within(self.time_limit, environment.close)

    async def test_does_not_block_the_event_loop(self) -> None:
        """Coroutines never hold the event loop; plain methods run in a thread and may block."""
        await self.check_leaves_the_loop_free(
            self.play,
            remedy="Write `def` instead of `async def` for a method that blocks.",
        )

    def _runner(self, environment: Any) -> EnvironmentRunner:
        return EnvironmentRunner(environment, self.ref.label, self.time_limit)

    def _only_deterministic(self) -> None:
        if not self.deterministic:
            pytest.skip("the suite says deterministic = False")

    def _broken(self, error: Exception, remedy: str) -> None:
        self.check(False, expected="what a run can use", got=str(error), remedy=remedy)

    def _check_same(self, one: Played, other: Played, how: str) -> None:
        self.check(
            one == other,
            expected=f"the same episode from {how}: {one}",
            got=repr(other),
            remedy="Draw from random.Random(seed) of reset(), and keep state on the object alone.",
        )
