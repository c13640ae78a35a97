"""Reward models that break one rule each."""

from __future__ import annotations

import asyncio
import random
import time

import anyio

from miles_core.api import Reward
from miles_core.testing import RewardModelSuite


def others_run() -> bool:
    """Whether a suite measures how long the event loop is held: blocking always would make the others slow."""
    return any(task.get_name().endswith(".beat") for task in asyncio.all_tasks())


class Right:
    """Scores the length of the answer."""

    scope = "sample"

    def __init__(self, config, context):
        self.noise = random.random()

    async def score(self, items):
        return [self.one(item) for item in items]

    def one(self, item):
        return Reward(float(len(item.response)))


class GivesATuple(Right):
    """One by one."""

    async def score(self, items):
        return tuple(await super().score(items))


class Infinite(Right):
    """Divides by the length."""

    def one(self, item):
        return Reward(1 / len(item.response) if item.response else float("inf"))


class Silent(Right):
    """Says nothing about empty answers."""

    def one(self, item):
        return Reward(float(len(item.response)) or None)


class Changing(Right):
    """Marks what it has seen."""

    def one(self, item):
        object.__setattr__(item, "error", "seen")
        return super().one(item)


class Drawing(Right):
    """Adds noise."""

    def one(self, item):
        return Reward(len(item.response) + self.noise)


class Relative(Right):
    """Divides by the size of the batch."""

    async def score(self, items):
        return [Reward(len(item.response) / len(items)) for item in items]


class ByPlace(Right):
    """Prefers what comes first."""

    scope = "group"

    async def score(self, items):
        return [Reward(float(place)) for place in range(len(items))]


class Shared(Right):
    """Keeps the items of a call on itself."""

    async def score(self, items):
        self.items = items
        await anyio.lowlevel.checkpoint()
        return [self.one(item) for item in self.items]


class Blocking(Right):
    """Sleeps."""

    async def score(self, items):
        if others_run():
            time.sleep(0.6)  # noqa: ASYNC251 - that is what is wrong with it
        return await super().score(items)


class TestGivesATuple(RewardModelSuite):
    plugin = GivesATuple
    breaks = ("returns_one_reward_per_item",)


class TestInfinite(RewardModelSuite):
    plugin = Infinite
    breaks = ("values_are_finite_numbers",)


class TestSilent(RewardModelSuite):
    plugin = Silent
    breaks = ("a_missing_value_has_a_reason",)


class TestChanging(RewardModelSuite):
    plugin = Changing
    breaks = ("does_not_change_its_items",)


class TestDrawing(RewardModelSuite):
    plugin = Drawing
    breaks = ("scores_the_same_again",)


class TestRelative(RewardModelSuite):
    plugin = Relative
    breaks = ("a_score_does_not_depend_on_the_rest_of_the_batch",)


class TestByPlace(RewardModelSuite):
    plugin = ByPlace
    breaks = ("scores_follow_their_items",)


class TestShared(RewardModelSuite):
    plugin = Shared
    breaks = ("calls_may_overlap",)


class TestBlocking(RewardModelSuite):
    plugin = Blocking
    breaks = ("does_not_block_the_event_loop",)


class TestUnexpected(RewardModelSuite):
    plugin = Right
    expected = (1, 1, 2, 3, 5, 8)
    breaks = ("gives_the_expected_rewards",)
