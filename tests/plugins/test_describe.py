from __future__ import annotations

import pytest

from miles_core.kinds import KINDS
from miles_core.plugins.describe import function_of, members_of, summary_of


def _definitions(kind):
    return {member.name: member.definition for member in members_of(KINDS[kind])}


def test_attributes_come_with_the_values_that_they_may_have():
    assert _definitions("reward_models")["scope"] == "scope = 'sample' or 'group'"
    assert _definitions("losses")["needs"].startswith("needs: a tuple of some of 'entropy'")
    assert _definitions("model_bridges")["mapping"] == "mapping: NameMapping"


def test_methods_say_whether_they_may_be_async():
    assert _definitions("environments")["reset"] == "def or async def reset(self, task: Task, seed: int)"
    assert _definitions("router_middlewares")["__call__"].startswith("async def __call__(self, scope: Scope")
    assert _definitions("data_sources")["take"] == "def take(self, count: int) -> list[tuple[int, Task]]"


def test_a_plain_function_is_shown_where_one_is_enough():
    assert function_of(KINDS["reward_models"]) == "def or async def fn(trajectory)"
    assert function_of(KINDS["advantage_estimators"]) == "def fn(step_batch)"
    assert function_of(KINDS["trackers"]) is None


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_member_that_a_kind_requires_is_described(kind):
    members = members_of(kind)
    assert {member.name for member in members if member.required} == set(kind.members)
    assert all(member.summary for member in members if "(" in member.definition)


def test_a_summary_is_the_first_paragraph_on_one_line():
    class Wrapped:
        """One sentence that
        goes on.

        And more.
        """

    assert summary_of(Wrapped) == "One sentence that goes on."
    assert summary_of(lambda: None) == ""
