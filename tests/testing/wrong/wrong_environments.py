"""Environments that break one rule each."""

from __future__ import annotations

import asyncio
import random
import time

import anyio

from miles_core.api import Observation, Step
from miles_core.testing import EnvironmentSuite, make_task


class Right:
    """Counts turns up to three."""

    def __init__(self, config, context):
        self.turn = 0

    async def reset(self, task, seed):
        self.turn = 0
        self.start = random.Random(seed).randrange(1000)
        return Observation(f"start at {self.start}")

    async def step(self, response):
        self.turn += 1
        return Step(self.shown(), done=self.turn == 3, reward=float(len(response.text)))

    def shown(self):
        return Observation(f"turn {self.turn}")

    async def close(self):
        pass


class ShowsAnObject(Right):
    """Starts with what no message can carry."""

    async def reset(self, task, seed):
        await super().reset(task, seed)
        return object()


class GivesADict(Right):
    """Answers with a dict."""

    async def step(self, response):
        step = await super().step(response)
        return {"observation": step.observation, "done": step.done}


class OtherRole(Right):
    """Answers as a tool."""

    def shown(self):
        return Observation("a result", role="tool")


class Unseeded(Right):
    """Draws its start."""

    async def reset(self, task, seed):
        return await super().reset(task, random.random())


class Shared(Right):
    """Counts turns for all."""

    turns = 0

    async def reset(self, task, seed):
        Shared.turns = 0
        return await super().reset(task, seed)

    def shown(self):
        Shared.turns += 1
        return Observation(f"turn {Shared.turns}")

    async def step(self, response):
        step = await super().step(response)
        await anyio.lowlevel.checkpoint()
        return step


class Continuing(Right):
    """Goes on where it stopped."""

    def __init__(self, config, context):
        super().__init__(config, context)
        self.total = 0

    def shown(self):
        self.total += 1
        return Observation(f"turn {self.total}")


class ClosesOnce(Right):
    """Closes what only reset() opens."""

    async def close(self):
        del self.start


class Changing(Right):
    """Writes into the task."""

    async def reset(self, task, seed):
        object.__setattr__(task, "label", f"{task.label}, seen")
        return await super().reset(task, seed)


class Strict(Right):
    """Wants words."""

    async def step(self, response):
        if not response.text.isalpha():
            raise ValueError("no word")
        return await super().step(response)


class Blocking(Right):
    """Sleeps."""

    async def step(self, response):
        if self.turn == 0 and any(task.get_name().endswith(".beat") for task in asyncio.all_tasks()):
            time.sleep(0.6)  # noqa: ASYNC251 - that is what is wrong with it
        return await super().step(response)


class TestRight(EnvironmentSuite):
    plugin = Right
    breaks = ()


class TestShowsAnObject(EnvironmentSuite):
    plugin = ShowsAnObject
    breaks = ("reset_returns_an_observation_or_none",)
    ruins = True


class TestGivesADict(EnvironmentSuite):
    plugin = GivesADict
    breaks = ("step_returns_a_step",)
    ruins = True


class TestOtherRole(EnvironmentSuite):
    plugin = OtherRole
    breaks = ("observations_have_declared_roles",)


class TestUnseeded(EnvironmentSuite):
    plugin = Unseeded
    # without a seed nothing can be played again
    breaks = ("the_same_seed_plays_the_same_episode", "episodes_do_not_share_state", "reset_starts_over")


class TestShared(EnvironmentSuite):
    plugin = Shared
    breaks = ("episodes_do_not_share_state",)


class TestContinuing(EnvironmentSuite):
    plugin = Continuing
    breaks = ("reset_starts_over",)


class TestClosesOnce(EnvironmentSuite):
    plugin = ClosesOnce
    breaks = ("close_is_safe_at_any_moment",)


class TestChanging(EnvironmentSuite):
    plugin = Changing
    tasks = (make_task(label="unseen"),)
    breaks = ("does_not_change_its_task",)


class TestStrict(EnvironmentSuite):
    plugin = Strict
    responses = ("a", "b", "c")
    breaks = ("survives_whatever_the_policy_says",)


class TestBlocking(EnvironmentSuite):
    plugin = Blocking
    breaks = ("does_not_block_the_event_loop",)
