"""A suite takes its plugin in any form, and says what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import miles_core.testing as kit
from miles_core.api import Verdict
from miles_core.kinds import KINDS
from miles_core.testing import EnvironmentSuite, FilterSuite, RewardModelSuite
from miles_core.testing.suites.checks import BLOCK_LIMIT, longest_block


def length(trajectory):
    """Scores the length of the answer."""
    return len(trajectory.response)


async def long_enough(group):
    """Keeps groups of two or more."""
    return Verdict(True) if len(group.trajectories) > 1 else Verdict(False, "small")


class TestOfAFunction(RewardModelSuite):
    plugin = length


class TestOfAStaticMethod(RewardModelSuite):
    plugin = staticmethod(length)


class TestOfACoroutineFunction(FilterSuite):
    plugin = long_enough
    expected = (True, True, False, True, True)


class TestOfATarget(RewardModelSuite):
    plugin = "rm_hub.exact_match:ExactMatch"
    options = {"ignore_case": True}  # noqa: RUF012 - a setting


class Tokenizing:
    """Shows how many tokens the policy said."""

    def __init__(self, config, context):
        self.tokenizer = context.tokenizer

    def reset(self, task, seed):
        return None

    def step(self, response):
        from miles_core.api import Step

        return Step(f"{len(self.tokenizer.encode(response.text))} tokens")

    def close(self):
        pass


class TestOfAnEnvironmentThatNeedsTheTokenizer(EnvironmentSuite):
    plugin = Tokenizing


class Nameless(RewardModelSuite):
    pass


def test_a_suite_without_plugin_says_what_to_set() -> None:
    with pytest.raises(pytest.fail.Exception, match="set `plugin` in Nameless to a name, module:attribute"):
        Nameless().test_loads()


def test_suites_have_the_names_of_their_kinds() -> None:
    assert kit.SUITES.keys() <= KINDS.keys()
    for kind, name in kit.SUITES.items():
        assert getattr(kit, name).kind == kind


def test_every_rule_says_what_it_is() -> None:
    for name in {*kit.SUITES.values(), "PluginSuite"}:
        suite = getattr(kit, name)
        rules = [getattr(suite, test) for test in dir(suite) if test.startswith("test_")]
        assert [rule for rule in rules if not (rule.__doc__ or "").strip().endswith(".")] == []


def test_the_kit_imports_what_it_names_and_nothing_before() -> None:
    code = (
        "import sys, miles_core.testing as kit; print('numpy' in sys.modules, 'pytest' in sys.modules)\n"
        "assert all(getattr(kit, name) is not None for name in kit.__all__)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "False"]


@pytest.mark.anyio
async def test_waiting_is_no_blocking() -> None:
    import anyio

    assert await longest_block(lambda: anyio.sleep(2 * BLOCK_LIMIT)) < BLOCK_LIMIT
