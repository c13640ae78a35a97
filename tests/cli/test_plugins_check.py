"""``miles plugins check`` as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from miles_core.cli import plugins_check
from miles_core.errors import PluginError
from miles_core.testing.site import Site

if TYPE_CHECKING:
    from pathlib import Path

MODULE = '''
from miles_core.api import Reward


class Good:
    """Scores the length of the answer."""

    scope = "sample"

    def __init__(self, config, context):
        pass

    def score(self, items):
        return [Reward(float(len(item.response))) for item in items]


class Infinite(Good):
    """Divides by the length."""

    def score(self, items):
        return [Reward(1 / len(item.response) if item.response else float("inf")) for item in items]


class Tracker:
    """Tracks nothing."""

    def __init__(self, config, context):
        raise RuntimeError("no run here")

    def log(self, step, metrics):
        pass

    def close(self):
        pass


def score(trajectory):
    """Scores the length of the answer."""
    return len(trajectory.response)


def die(trajectory):
    """Takes the process with it."""
    import os

    os._exit(3)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = Site(tmp_path_factory.mktemp("site"))
    site(
        "acme-kit",
        source=MODULE,
        reward_models={"acme_good": "acme_kit:Good", "acme_infinite": "acme_kit:Infinite", "acme_gone": "acme_gone:x"},
        trackers={"acme_tracker": "acme_kit:Tracker"},
    )
    # what lies about in the user's folder changes nothing
    (site.folder / "conftest.py").write_text("raise RuntimeError('not mine')\n")
    (site.folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    return site.folder


def miles(folder: Path, *arguments: str) -> tuple[int, list[str], str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "miles_core.cli", "plugins", "check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    "arguments", [["acme-kit/acme_good"], ["acme_kit:score", "--kind", "reward_models"]], ids=["installed", "target"]
)
def test_a_good_plugin_passes_rule_by_rule(folder: Path, arguments: list[str]) -> None:
    status, lines, _ = miles(folder, *arguments)
    assert status == 0
    assert "  passed   returns_one_reward_per_item" in lines
    assert "  skipped  scores_follow_their_items (its scope is 'sample')" in lines
    assert lines[-1] == "12 passed, 2 skipped"


def test_a_broken_rule_is_told_with_what_was_expected_and_what_to_do(folder: Path) -> None:
    status, lines, _ = miles(folder, "acme_infinite")
    assert status == 1
    [at] = [number for number, line in enumerate(lines) if "failed" in line and "rule" not in line and ":" in line]
    assert lines[at].startswith("  failed   values_are_finite_numbers: A value is a finite int or float")
    assert lines[at + 1].strip() == (
        "acme_infinite (acme-kit 1.0): expected a finite number or None for ''; got inf. "
        "Return Reward(None, reason) where no score can be computed."
    )
    assert lines[-1] == "11 passed, 1 failed, 2 skipped"


def test_a_reason_is_told_once(folder: Path) -> None:
    status, lines, _ = miles(folder, "acme_gone")
    assert status == 1
    assert sum("No module named 'acme_gone'" in line for line in lines) == 1
    assert "  failed   is_made_from_its_options: as above" in lines


def test_a_plugin_that_ends_the_process_is_told_with_the_place(folder: Path) -> None:
    status, _, stderr = miles(folder, "acme_kit:die", "--kind", "reward_models")
    assert status == 1
    assert "the suite ended with exit status 3, after the rule has_a_docstring" in stderr


def test_a_kind_without_suite_is_loaded_but_not_made(folder: Path) -> None:
    status, lines, _ = miles(folder, "acme_tracker")
    assert status == 0
    assert "trackers have no suite yet: checked is what loading shows" in lines
    assert lines[-1] == "3 passed"


def test_options_and_files_come_from_the_command_line(folder: Path) -> None:
    (folder / "rows.jsonl").write_text("".join(f'{{"prompt": "{n}"}}\n' for n in range(9)))
    arguments = ["jsonl", "--kind", "data_sources", "--options", "path=rows.jsonl", "shuffle=true"]
    status, lines, stderr = miles(folder, *arguments)
    assert status == 0, (lines, stderr)
    assert lines[-1] == "13 passed, 1 skipped"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["acme_godo"], "no plugin is called 'acme_godo'; installed: "),
        (["acme_good", "--kind", "rewards"], "there is no plugin kind 'rewards'"),
        (["acme_good", "--options", "limit"], "--options limit: expected a key, '=' and a value"),
    ],
)
def test_wrong_calls_say_what_to_write(folder: Path, arguments: list[str], message: str) -> None:
    status, lines, stderr = miles(folder, *arguments)
    assert (status, lines) == (1, [])
    assert message in stderr


def test_one_that_is_left_out_is_named_with_the_reason(folder: Path) -> None:
    entries = {"miles.reward_models": {"acme_later": "acme:Good"}}
    Site(folder).install("acme-later", "1.0", entries, requires=["miles-hub>999"])
    status, lines, stderr = miles(folder, "acme_later")
    assert (status, lines) == (1, [])
    assert "'acme_later' is installed but incompatible, because it needs miles-hub>999" in stderr


def test_without_pytest_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins_check, "find_spec", lambda name: None)
    with pytest.raises(PluginError, match="which is not installed") as caught:
        plugins_check.check("exact_match")
    assert caught.value.remedy == 'Run: pip install "miles-hub[testing]"'
