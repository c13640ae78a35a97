"""The packages of examples/plugins as a stranger uses them: installed by pip, tested, and trained with by name."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from miles_core.kinds import KINDS
from miles_core.plugins.hub import Hub

if TYPE_CHECKING:
    from collections.abc import Iterator

PLUGINS = Path(__file__).parents[2] / "examples/plugins"
CONFIG = PLUGINS / "config.toml"
PACKAGES = sorted(path.parent for path in PLUGINS.glob("*/pyproject.toml"))
COPIED = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".pytest_cache")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip installed all packages into, out of copies, since building writes beside the source."""
    folder = tmp_path_factory.mktemp("packages")
    copies = [str(shutil.copytree(package, folder / package.name, ignore=COPIED)) for package in PACKAGES]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--disable-pip-version-check", "--target", str(folder / "site"), *copies],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


def run(installed: Path, *arguments: str, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def project(package: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def entry_points() -> set[tuple[str, str, str]]:
    """Group, name and distribution of each plugin."""
    return {
        (group, name, package.name)
        for package in PACKAGES
        for group, entries in project(package)["entry-points"].items()
        for name in entries
    }


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_imports_nothing_of_the_core_but_what_is_stable(package: Path) -> None:
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("miles"):
                allowed = {"miles_core.api"} | ({"miles_core.testing"} if "tests" in path.parts else set())
                assert node.module in allowed, path


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_says_which_versions_of_miles_hub_it_is_for(package: Path) -> None:
    assert project(package)["dependencies"][0] == "miles-hub>=0.1,<0.2"


def test_pip_makes_plugins_of_them_without_a_problem(installed: Path) -> None:
    hub = Hub.discover(path=[str(installed)])
    assert {(f"miles.{ref.kind}", ref.name, ref.distribution) for ref in hub.refs()} == entry_points()
    assert not hub.problems


def test_their_own_tests_pass(installed: Path) -> None:
    folders = [str(package / "tests") for package in PACKAGES]
    options = ("-q", "-W", "error", "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir=.")
    run(installed, "pytest", *options, "-c", os.devnull, *folders, cwd=installed)


def test_the_config_uses_every_one_of_them_and_its_options_are_theirs(installed: Path, tmp_path: Path) -> None:
    """`tests/packages` trains with it, in an environment of its own."""
    locked = json.loads(run(installed, "miles_core.cli", "plugins", "lock", "--config", str(CONFIG), cwd=tmp_path))
    used = {(f"miles.{row['kind']}", row["use"], row["distribution"]) for row in locked}
    assert entry_points() <= used


def test_the_options_in_their_readmes_are_valid(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed)
    hub = Hub.discover(path=[str(installed)])
    named = set()
    for package in PACKAGES:
        for block in re.findall(r"^```toml\n(.*?)^```$", (package / "README.md").read_text("utf-8"), re.M | re.S):
            for kind, table in tables(tomllib.loads(block)):
                use = table.pop("use")
                hub.configure(kind, use, table)
                named.add((f"miles.{kind}", use, package.name))
    assert named == entry_points()


def tables(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The plugin tables of a config file, each with its kind."""
    for kind in KINDS.values():
        found: Any = config
        for key in kind.table.strip("[]").split("."):
            found = found.get(key, {}) if isinstance(found, dict) else {}
        yield from ((kind.plural, table) for table in (found if isinstance(found, list) else [found]) if table)


def test_their_types_are_checked_strictly() -> None:
    sources = [package / "src" for package in PACKAGES]
    files = [str(file) for source in sources for file in source.rglob("*.py")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--explicit-package-bases", *files],
        cwd=PLUGINS.parents[1],
        env={**os.environ, "MYPYPATH": os.pathsep.join(map(str, sources))},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
