"""Each rule of each suite is broken by a deliberately wrong plugin, which fails that rule and no other."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import miles_core.testing as kit
from miles_core.testing.reporting import OPTION, Outcome, read_outcomes

# one fixture runs all wrong plugins
pytestmark = pytest.mark.timeout(300)

WRONG = Path(__file__).parent / "wrong"
FILES = sorted(WRONG.glob("wrong_*.py"))


def told(path: Path) -> list[Any]:
    """What each suite of a file says that it breaks, read without importing it."""
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    found = []
    for node in classes:
        assigned = [each for each in node.body if isinstance(each, ast.Assign)]
        values = {each.targets[0].id: each.value for each in assigned if isinstance(each.targets[0], ast.Name)}
        if "breaks" in values:
            breaks = ast.literal_eval(values["breaks"])
            case = (path.stem, node.name, set(breaks), "ruins" in values)
            found.append(pytest.param(*case, id=f"{path.stem}-{node.name}"))
    return found


CASES = [case for path in FILES for case in told(path)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Outcome]]:
    """What the suites found, by file and suite, all in one process of their own."""
    path = tmp_path_factory.mktemp("wrong") / "outcomes"
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(WRONG),
        "OMP_NUM_THREADS": "1",
    }
    plugins = ["-p", "anyio.pytest_plugin", "-p", "miles_core.testing.reporting", "-p", "no:cacheprovider"]
    options = ["-q", "--noconftest", "-c", os.devnull, "-W", "error", f"--rootdir={WRONG}", f"{OPTION}={path}"]
    command = [sys.executable, "-m", "pytest", *plugins, *options, *map(str, FILES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    found = defaultdict(list)
    for outcome in read_outcomes(path):
        found[outcome.module, outcome.suite].append(outcome)
    return found


@pytest.mark.parametrize(("file", "suite", "breaks", "ruins"), CASES)
def test_a_wrong_plugin_fails_what_it_breaks(outcomes, file: str, suite: str, breaks: set[str], ruins: bool) -> None:
    failed = {outcome.rule: outcome.reason for outcome in outcomes[file, suite] if outcome.outcome == "failed"}
    assert outcomes[file, suite]
    assert breaks <= failed.keys() if ruins else breaks == failed.keys(), failed


def test_failures_say_what_was_expected_what_came_and_what_to_do(outcomes) -> None:
    for file, suite, breaks, ruins in (case.values for case in CASES):
        if ruins or file == "wrong_any":
            continue
        for outcome in outcomes[file, suite]:
            if outcome.rule in breaks and outcome.outcome == "failed" and "Error" not in outcome.reason:
                assert ": expected " in outcome.reason
                assert "; got " in outcome.reason
                assert outcome.reason.rstrip().endswith((".", "]", ")")), outcome.reason


@pytest.mark.parametrize("name", sorted({*kit.SUITES.values(), "PluginSuite"}))
def test_every_rule_is_broken_by_some_plugin(name: str) -> None:
    broken = set().union(*(case.values[2] for case in CASES))
    rules = {test.removeprefix("test_") for test in dir(getattr(kit, name)) if test.startswith("test_")}
    assert rules - broken == set()
