"""Filters that break one rule each."""

from __future__ import annotations

import asyncio
import statistics
import time

from miles_core.api import Verdict
from miles_core.testing import FilterSuite, make_group


class Right:
    """Drops groups of low rewards."""

    stage = "group"

    def __init__(self, config, context):
        self.count = 0

    def keep(self, item):
        return Verdict(True) if max(item.rewards) > 0.3 else Verdict(False, "low_rewards")


class GivesABool(Right):
    """Says yes or no."""

    def keep(self, item):
        return super().keep(item).keep


class Wordy(Right):
    """Explains in a sentence."""

    def keep(self, item):
        return Verdict(super().keep(item).keep, f"Group {item.id} is too low!")


class Counting(Right):
    """Keeps every second group."""

    def keep(self, item):
        self.count += 1
        return Verdict(True) if self.count % 2 else Verdict(False, "second")


class Changing(Right):
    """Moves the group."""

    def keep(self, item):
        object.__setattr__(item, "index", item.index + 1)
        return super().keep(item)


class Spread(Right):
    """Wants a spread of rewards."""

    def keep(self, item):
        return Verdict(True) if statistics.stdev(item.rewards) else Verdict(False, "no_spread")


class Slow(Right):
    """Takes its time."""

    def keep(self, item):
        time.sleep(0.06)
        return super().keep(item)


class Blocking(Right):
    """Takes the event loop's time."""

    async def keep(self, item):
        self.count += 1
        if self.count == 1 and any(task.get_name().endswith(".beat") for task in asyncio.all_tasks()):
            time.sleep(0.6)  # noqa: ASYNC251 - that is what is wrong with it
        return super().keep(item)


class TestGivesABool(FilterSuite):
    plugin = GivesABool
    breaks = ("returns_a_verdict",)


class TestWordy(FilterSuite):
    plugin = Wordy
    breaks = ("a_drop_has_a_snake_case_reason",)


class TestCounting(FilterSuite):
    plugin = Counting
    breaks = ("judges_the_same_again",)


class TestChanging(FilterSuite):
    plugin = Changing
    breaks = ("does_not_change_its_item",)


class TestSpread(FilterSuite):
    plugin = Spread
    examples = (make_group(1.0, 0.0), make_group(1.0, 1.0))
    breaks = ("judges_the_smallest_items",)


class TestSlow(FilterSuite):
    plugin = Slow
    time_limit = 0.05
    breaks = ("is_fast",)
    ruins = True  # what is slower than the limit is cut off


class TestBlocking(FilterSuite):
    plugin = Blocking
    breaks = ("does_not_block_the_event_loop",)


class TestUnexpected(FilterSuite):
    plugin = Right
    expected = (False, True, True, True, True)
    breaks = ("gives_the_expected_verdicts",)
