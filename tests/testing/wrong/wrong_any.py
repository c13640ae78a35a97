"""What any plugin may do wrong, shown on reward models.

``breaks`` are the rules that must fail, and no others; ``ruins`` is set where a broken rule makes others impossible.
"""

from __future__ import annotations

from pydantic import BaseModel

from miles_core.api import Reward
from miles_core.testing import RewardModelSuite


class Right:
    """Scores the length of the answer."""

    scope = "sample"

    def __init__(self, config, context):
        self.config = config

    async def score(self, items):
        return [self.one(item) for item in items]

    def one(self, item):
        return Reward(float(len(item.response)))


class WithoutScore:
    """Has no score."""

    scope = "sample"


class FailsToStart(Right):
    """Cannot be made."""

    def __init__(self, config, context):
        raise RuntimeError("no such grader")


class TakesAnyKey(Right):
    """Lets typos pass."""

    class Config(BaseModel, extra="allow"):
        limit: int = 3


class Unexplained(Right):
    __doc__ = None


class TestRight(RewardModelSuite):
    plugin = Right
    breaks = ()


class TestWithoutScore(RewardModelSuite):
    plugin = WithoutScore
    breaks = ("loads",)
    ruins = True


class TestMissing(RewardModelSuite):
    plugin = "no_such_module_xyz:score"
    breaks = ("loads",)
    ruins = True


class TestFailsToStart(RewardModelSuite):
    plugin = FailsToStart
    breaks = ("is_made_from_its_options",)
    ruins = True


class TestTakesAnyKey(RewardModelSuite):
    plugin = TakesAnyKey
    breaks = ("refuses_unknown_options",)


class TestUnexplained(RewardModelSuite):
    plugin = Unexplained
    breaks = ("has_a_docstring",)
