"""What every reward model must keep."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import pytest

from miles_core.kinds.reward_models import OFFERS
from miles_core.lib.numbers import is_finite
from miles_core.lib.signatures import accepted
from miles_core.testing.builders import make_task, make_trajectory
from miles_core.testing.suites.base import PluginSuite
from miles_core.testing.suites.checks import photograph, within
from miles_core.types import Reward
from miles_core.types.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.types import Trajectory


def example_trajectories() -> tuple[Trajectory, ...]:
    """Right, wrong, long, multi-turn and empty answers to one task."""
    task = make_task()
    answers: tuple[tuple[str, ...], ...] = (
        ("5",),
        ("4",),
        ("The answer is 5.",),
        ("Let me think: 2 + 3 = 5, so \\boxed{5}.", "5"),
        ("é 你好 🙂 " * 50,),
        ("",),
    )
    return tuple(make_trajectory(*said, task=task, id=f"trajectory-{n}", seed=n) for n, said in enumerate(answers))


class RewardModelSuite(PluginSuite):
    """Conformance of reward models.

    ``examples`` are trajectories of the author's own tasks, ``expected`` what their rewards must be, where given
    (``None``: no reward). ``deterministic = False`` is for graders that may judge the same text differently.
    """

    kind = "reward_models"
    examples: ClassVar[Sequence[Trajectory]] = ()
    expected: ClassVar[Sequence[float | None] | None] = None
    deterministic: ClassVar[bool] = True

    @property
    def items(self) -> list[Trajectory]:
        """What is scored, read-only as in a run."""
        return [frozen(item) for item in self.examples or example_trajectories()]

    async def score(self, items: Sequence[Trajectory], model: Any = None) -> list[Reward]:
        """The rewards of one call."""
        score = (model or self.make()).score
        group = tuple(self.items)
        offered = {"group": group, "task": items[0].task}
        keywords = {name: offered[name] for name in accepted(score, 1, OFFERS)}
        scored: list[Reward] = await within(self.time_limit, score, items, **keywords)
        return scored

    async def test_returns_one_reward_per_item(self) -> None:
        """``score`` returns a list with one ``Reward`` for each item, also for a single one."""
        for items in (self.items, self.items[:1]):
            rewards = await self.score(items)
            self.check(
                isinstance(rewards, list) and [type(reward) for reward in rewards] == [Reward] * len(items),
                expected=f"a list of {len(items)} Reward objects",
                got=rewards,
                remedy="Return one Reward per item, in the order of the items.",
            )

    async def test_values_are_finite_numbers(self) -> None:
        """A value is a finite int or float, or ``None``; never NaN, an infinity, a bool or text."""
        for item, reward in zip(self.items, await self.score(self.items), strict=False):
            value = getattr(reward, "value", None)
            self.check(
                value is None or (isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value)),
                expected=f"a finite number or None for {item.response[:40]!r}",
                got=value,
                remedy="Return Reward(None, reason) where no score can be computed.",
            )

    async def test_a_missing_value_has_a_reason(self) -> None:
        """``Reward(None)`` says why there is no score; the reason is what users see."""
        model = self.make()
        unlabelled = frozen(make_trajectory("5", task=make_task(label=None)))
        for items in (self.items, [unlabelled]):
            rewards: list[Reward] = []
            with suppress(Exception):  # a run takes what was raised for the reason
                rewards = await self.score(items, model)
            for reward in rewards:
                self.check(
                    getattr(reward, "value", 0) is not None or reward.reason,
                    expected="a reason with a value of None",
                    got=reward,
                    remedy='Write Reward(None, "why it could not be scored").',
                )

    async def test_does_not_change_its_items(self) -> None:
        """The trajectories are the same after scoring: what is trained must be what was generated."""
        items = self.items
        before = photograph(items)
        await self.score(items)
        self.check(
            photograph(items) == before,
            expected="unchanged trajectories",
            got="trajectories that differ after score()",
            remedy="Work on copies.",
        )

    async def test_scores_the_same_again(self) -> None:
        """The same items get the same rewards from the same object and from a new one."""
        if not self.deterministic:
            pytest.skip("the suite says deterministic = False")
        model = self.make()
        first = [await self.score(self.items, model) for _ in range(2)]
        self._check_same(first[0], first[1], "a second call")
        self._check_same(first[0], await self.score(self.items), "a new object")

    async def test_a_score_does_not_depend_on_the_rest_of_the_batch(self) -> None:
        """Scope ``sample``: an item scores the same alone, in a batch and in any order."""
        model = self.make()
        if model.scope != "sample":
            pytest.skip(f"its scope is {model.scope!r}")
        if not self.deterministic:
            pytest.skip("the suite says deterministic = False")
        items = self.items
        together = await self.score(items, model)
        self._check_same(together, [(await self.score([item], model))[0] for item in items], "each item alone")
        self._check_same(together, (await self.score(items[::-1], model))[::-1], "the batch in reverse")

    async def test_scores_follow_their_items(self) -> None:
        """Scope ``group``: the rewards of a group in another order are the rewards in that order."""
        model = self.make()
        if model.scope == "sample":
            pytest.skip("its scope is 'sample'")
        if not self.deterministic:
            pytest.skip("the suite says deterministic = False")
        items = self.items
        self._check_same(await self.score(items, model), (await self.score(items[::-1], model))[::-1], "the reverse")

    async def test_calls_may_overlap(self) -> None:
        """Many calls at once give what one after the other gives: a run scores all groups concurrently."""
        if not self.deterministic:
            pytest.skip("the suite says deterministic = False")
        model = self.make()
        items = self.items
        batches = [items[n:] + items[:n] for n in range(len(items))]
        apart = [await self.score(batch, model) for batch in batches]
        together: list[list[Reward]] = [[] for _ in batches]

        async def one(number: int) -> None:
            together[number] = await self.score(batches[number], model)

        async with anyio.create_task_group() as tasks:
            for number in range(len(batches)):
                tasks.start_soon(one, number)
        for alone, overlapping in zip(apart, together, strict=True):
            self._check_same(alone, overlapping, "calls that overlap")

    async def test_does_not_block_the_event_loop(self) -> None:
        """While it scores, generation goes on: nothing in ``score`` holds the event loop."""
        await self.check_leaves_the_loop_free(
            lambda: self.score(self.items),
            remedy="Await what waits, and run what computes in a thread: await anyio.to_thread.run_sync(function).",
        )

    async def test_gives_the_expected_rewards(self) -> None:
        """The examples get what the author expects."""
        if self.expected is None:
            pytest.skip("the suite gives no `expected` rewards")
        got = [reward.value for reward in await self.score(self.items)]
        self.check(
            got == pytest.approx(list(self.expected)),
            expected=str(list(self.expected)),
            got=got,
            remedy="Correct the reward model, or the suite's `expected`.",
        )

    def _check_same(self, first: Sequence[Reward], second: Sequence[Reward], how: str) -> None:
        one, other = ([getattr(reward, "value", reward) for reward in rewards] for rewards in (first, second))
        self.check(
            one == other,
            expected=f"the same rewards from {how}: {one}",
            got=other,
            remedy="Keep no state between items and calls, and seed what draws.",
        )
