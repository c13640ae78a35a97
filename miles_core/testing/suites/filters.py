"""What every filter must keep."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from miles_core.kinds.filters import BufferedGroup, Verdict
from miles_core.testing.builders import make_group, make_trajectory
from miles_core.testing.suites.base import PluginSuite
from miles_core.testing.suites.checks import photograph, within
from miles_core.types.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.types import Group, Trajectory

_SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def example_groups() -> tuple[Group, ...]:
    """Groups of mixed, equal, single, negative and many rewards."""
    rewards = ((1.0, 0.0, 0.5, 0.0), (1.0, 1.0, 1.0), (0.3,), (-2.0, 5.0), tuple(n / 16 for n in range(16)))
    return tuple(make_group(*each, id=f"group-{n}", index=n) for n, each in enumerate(rewards))


def example_scored() -> tuple[Trajectory, ...]:
    """Scored trajectories: short, long, of several turns, empty."""
    said = (("5",), ("word " * 200,), ("think", "5"), ("",))
    return tuple(
        make_trajectory(*texts, id=f"trajectory-{n}", reward=float(n % 2), length=6 + 3 * n, seed=n)
        for n, texts in enumerate(said)
    )


class FilterSuite(PluginSuite):
    """Conformance of filters.

    ``examples`` are items of the filter's stage: trajectories, groups or :class:`BufferedGroup`; ``expected`` says of
    each whether it is kept, where given.
    """

    kind = "filters"
    examples: ClassVar[Sequence[Any]] = ()
    expected: ClassVar[Sequence[bool] | None] = None
    time_limit: ClassVar[float] = 1.0

    def items(self, stage: str) -> list[Any]:
        """What is judged."""
        if self.examples:
            return list(self.examples)
        if stage == "sample":
            return list(example_scored())
        if stage == "buffer":
            return [BufferedGroup(group, staleness) for staleness, group in enumerate(example_groups())]
        return list(example_groups())

    async def judged(self, items: Sequence[Any] | None = None, made: Any = None) -> list[Verdict]:
        """The verdict on each item, read-only as in a run."""
        made = made or self.make()
        items = self.items(made.stage) if items is None else items
        return [await within(self.time_limit, made.keep, frozen(item)) for item in items]

    async def test_returns_a_verdict(self) -> None:
        """``keep`` returns a ``Verdict`` whose ``keep`` is a bool."""
        for verdict in await self.judged():
            self.check(
                isinstance(verdict, Verdict) and isinstance(verdict.keep, bool),
                expected="a Verdict with keep True or False",
                got=verdict,
                remedy="Return Verdict(True), or Verdict(False, reason).",
            )

    async def test_a_drop_has_a_snake_case_reason(self) -> None:
        """The reason of a drop is one short snake_case word: it becomes the name of a metric."""
        for verdict in await self.judged():
            kept, reason = getattr(verdict, "keep", True), getattr(verdict, "reason", "")
            self.check(
                kept or (len(reason) <= 40 and _SNAKE_CASE.fullmatch(reason)),
                expected="a reason such as equal_rewards, of at most 40 characters",
                got=reason,
                remedy="Put numbers and ids elsewhere: drops are counted by reason.",
            )

    async def test_judges_the_same_again(self) -> None:
        """An item gets the same verdict again, from the same object, from a new one and in another order."""
        made = self.make()
        items = self.items(made.stage)
        first, again, back = [await self.judged(order, made) for order in (items, items, items[::-1])]
        fresh = await self.judged(items)
        for other in (again, back[::-1], fresh):
            self.check(
                other == first,
                expected=f"the same verdicts again: {first}",
                got=other,
                remedy="Keep no state between items, and draw nothing.",
            )

    async def test_does_not_change_its_item(self) -> None:
        """The item is the same after it was judged."""
        made = self.make()
        for item in map(frozen, self.items(made.stage)):
            data = getattr(item, "group", item)
            before = photograph(data)
            await within(self.time_limit, made.keep, item)
            self.check(
                photograph(data) == before,
                expected="an unchanged item",
                got="an item that differs after keep()",
                remedy="Work on a copy.",
            )

    async def test_judges_the_smallest_items(self) -> None:
        """A group of one trajectory and an empty answer are judged too: an exception ends the run."""
        made = self.make()
        smallest = make_group(0.0, lengths=[4], responses=[""])
        item = {"sample": smallest.trajectories[0], "buffer": BufferedGroup(smallest, 0)}.get(made.stage, smallest)
        await self.judged([item], made)

    async def test_is_fast(self) -> None:
        """A verdict takes less than ``time_limit`` seconds: filters run between generation and training."""
        start = time.perf_counter()
        count = len(await self.judged())
        each = (time.perf_counter() - start) / count
        self.check(
            each < self.time_limit,
            expected=f"less than {self.time_limit:g} s per item",
            got=f"{each:.2f} s",
            remedy="Move what is slow into a reward model, and judge its reward.",
        )

    async def test_does_not_block_the_event_loop(self) -> None:
        """``async def keep`` never holds the event loop; ``def keep`` runs in a thread and may block."""
        await self.check_leaves_the_loop_free(
            self.judged,
            remedy="Write `def keep` instead of `async def keep`.",
        )

    async def test_gives_the_expected_verdicts(self) -> None:
        """The examples are kept and dropped as the author expects."""
        if self.expected is None:
            pytest.skip("the suite gives no `expected` verdicts")
        got = [verdict.keep for verdict in await self.judged()]
        self.check(
            got == list(self.expected),
            expected=str(list(self.expected)),
            got=got,
            remedy="Correct the filter, or the suite's `expected`.",
        )
