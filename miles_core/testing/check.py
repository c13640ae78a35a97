"""Running a kind's suite on one plugin, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_core.errors import PluginError
from miles_core.testing import SUITES
from miles_core.testing.reporting import OPTION, Outcome, read_outcomes

if TYPE_CHECKING:
    from collections.abc import Mapping

TIME_LIMIT_SECONDS = 600

_MODULE = """
from pathlib import Path

from miles_core.testing import {suite}


class TestPlugin({suite}):
    kind = {kind!r}
    plugin = {plugin!r}
    options = {options!r}
{more}
"""
_FOLDER = "    folder = Path({!r})"
# its services are known to a run alone
_NOT_MADE = "    test_is_made_from_its_options = None"


def run_suite(kind: str, plugin: str, options: Mapping[str, Any], folder: Path) -> list[Outcome]:
    """What the suite of ``kind`` finds about ``plugin``; a data source reads its files from ``folder``.

    Of a kind without a suite, what loading it shows.

    Raises:
        PluginError: if the suite ends without an outcome.
    """
    suite = SUITES.get(kind, "PluginSuite")
    more = _FOLDER.format(str(folder)) if kind == "data_sources" else "" if kind in SUITES else _NOT_MADE
    module = _MODULE.format(suite=suite, kind=kind, plugin=plugin, options=dict(options), more=more)
    with tempfile.TemporaryDirectory(prefix="miles-check-") as name:
        place = Path(name)
        (place / "test_plugin.py").write_text(module, "utf-8")
        outcomes = place / "outcomes.jsonl"
        done = _run(_command(place, outcomes))
        found = read_outcomes(outcomes)
    # 0: all passed; 1: some failed
    if done.returncode not in (0, 1) or not found:
        raise PluginError(
            f"the suite ended with exit status {done.returncode}{_place(found)}:\n"
            f"{(done.stdout + done.stderr)[-2000:].strip()}",
            remedy="See what the plugin does when it is imported and made.",
        )
    return found


def _place(found: list[Outcome]) -> str:
    return f", after the rule {found[-1].rule}" if found else ""


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    # the pytest plugins of an environment, and the options of a project, must not change what a rule says
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=TIME_LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        raise PluginError(
            f"the suite took longer than {TIME_LIMIT_SECONDS} s:\n{said[-2000:]}",
            remedy="Look for a call that never returns: the rule after the last dot.",
        ) from None


def _command(place: Path, outcomes: Path) -> list[str]:
    plugins = ["-p", "anyio.pytest_plugin", "-p", "miles_core.testing.reporting", "-p", "no:cacheprovider"]
    options = ["-q", "--noconftest", f"--rootdir={place}", "-c", os.devnull, f"{OPTION}={outcomes}"]
    # -P: the folder that the command runs in is no place to import from, here as in a run
    return [sys.executable, "-P", "-m", "pytest", *plugins, *options, str(place / "test_plugin.py")]
