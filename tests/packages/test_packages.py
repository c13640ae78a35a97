"""Packages as their users have them: installed as wheels, tested, listed, checked and trained with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from .clean_environment import ROOT
from .conftest import NEW, SAMPLES, Done, Packages, distribution

DISTRIBUTIONS = [*map(distribution, NEW), *(sample.name for sample in SAMPLES)]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_packages_own_tests_pass_on_its_wheel(name: str, own_tests: Mapping[str, Done]) -> None:
    done = own_tests[name].result()
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


def test_only_wheels_are_installed(packages: Packages, tmp_path: Path) -> None:
    """Nothing comes from this repository: it would hide what a wheel lacks."""
    code = "import miles_core, miles_plugins, rm_hub, sys; print(miles_core.__file__, *sys.path)"
    said = packages.environment.run("python", "-c", code, cwd=tmp_path).stdout
    assert str(packages.environment.scripts.parent) in said
    assert str(ROOT) not in said


def test_all_are_listed_and_nothing_is_wrong_with_them(packages: Packages, tmp_path: Path) -> None:
    done = packages.environment.run("miles", "plugins", "list", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    assert not listed["problems"]
    assert {row["distribution"] for row in listed["plugins"]} == {"miles-hub", *DISTRIBUTIONS}
    rows = {(row["kind"], row["name"], row["distribution"]) for row in listed["plugins"]}
    assert {(plural, name, distribution(plural)) for plural, name in NEW.items()} <= rows


@pytest.mark.parametrize("plural", NEW)
def test_a_new_plugin_follows_the_rules_of_its_kind(plural: str, checks: Mapping[str, Done]) -> None:
    done = checks[plural].result()
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert re.search(r"^[1-9]\d* passed", done.stdout, re.MULTILINE)


def test_types_are_checked_strictly_in_what_is_written(packages: Packages) -> None:
    """By this environment's mypy, against the sources of the repository."""
    folders = [packages.folders[distribution(plural)] / "src" for plural in NEW]
    files = [str(file) for folder in folders for file in folder.rglob("*.py")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--explicit-package-bases", *files],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not SAMPLES, reason="there are no sample packages")
def test_a_step_is_trained_with_all_samples(packages: Packages, tmp_path: Path) -> None:
    config = ROOT / "examples" / "plugins" / "config.toml"
    small = ["run.steps=1", "rollout.groups_per_step=8", "rollout.group_size=6", "warmup.steps=20", "run.id=run"]
    sets = [word for setting in (*small, f"run.dir={tmp_path}") for word in ("--set", setting)]
    done = packages.environment.run("miles", "train", config, *sets, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    used = {row["distribution"] for row in json.loads((tmp_path / "run" / "plugins.json").read_text())}
    assert {sample.name for sample in SAMPLES} <= used
