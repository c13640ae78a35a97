"""Commands that plugins add, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

ACME = '''
print("AT IMPORT")
def miles_add_commands(app):
    @app.command
    def label(path, *, times: int = 1):
        """Label the episodes of a run."""
        print("labelled", path, times)
        return 5
    @app.command
    def report(): "Mine."
'''


@pytest.fixture
def miles(tmp_path: Path):
    def install(name: str, source: str) -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[miles]\nhooks = {name}_hooks\n")
        (tmp_path / f"{name}_hooks.py").write_text(source)

    install("acme", ACME)
    install("bad", "def miles_add_commands(app): raise ValueError('boom')")
    install("zed", "def miles_add_commands(app): app.command(lambda: None, name='label')")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "miles_core.cli", *words],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "120"},
        )

    return run


def test_help_lists_them_and_tells_once_of_each_that_failed_or_collides(miles) -> None:
    done = miles("--help")
    assert done.returncode == 0
    assert "label        Label the episodes of a run." in done.stdout
    assert "Write one HTML page of a run" in done.stdout
    assert "AT IMPORT" not in done.stdout
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    twice = "warning: miles_add_commands() of hooks ({}) adds the command {!r}, which there is already; it is left out"
    assert warnings == [
        twice.format("acme 1.0", "report"),
        "warning: miles_add_commands() of hooks (bad 1.0) raised ValueError: boom",
        twice.format("zed 1.0", "label"),
    ]


def test_a_command_of_a_plugin_runs_with_its_arguments_and_its_exit_code(miles) -> None:
    done = miles("label", "runs/x", "--times", "3")
    assert (done.returncode, done.stdout) == (5, "labelled runs/x 3\n")


def test_our_own_commands_import_no_plugin(miles) -> None:
    for words in (["--version"], ["report", "--help"], ["plugins", "list"]):
        done = miles(*words)
        assert done.returncode == 0
        assert "AT IMPORT" not in done.stderr + done.stdout


def test_a_typo_is_held_against_the_commands_of_plugins_too(miles) -> None:
    done = miles("lable")
    assert done.returncode == 1
    assert "Did you mean 'label'?" in done.stderr


def test_without_plugins_there_are_none(miles) -> None:
    done = miles("--no-plugins", "label")
    assert done.returncode == 1
    assert "there is no command 'label'" in done.stderr
    assert "AT IMPORT" not in done.stderr
