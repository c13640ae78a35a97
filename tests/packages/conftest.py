"""One clean environment for all tests here: wheels of miles-hub, of a new package of each kind, and of the samples."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from typing import TypeAlias

import pytest

from miles_core.kinds import KINDS
from miles_core.scaffold.names import names_of
from miles_core.scaffold.render import render, write

from .clean_environment import ROOT, CleanEnvironment, build_wheels, copy_of_miles_hub

NEW = {
    "environments": "guess",
    "reward_models": "short",
    "filters": "moderate",
    "advantage_estimators": "centred",
    "losses": "truncated",
    "router_middlewares": "slow",
    "model_bridges": "Qwen2ForCausalLM",
    "data_sources": "sums",
    "weight_transports": "packed",
    "engines": "nice",
    "train_backends": "frozen",
    "trackers": "best",
}
"""The name of the new plugin of each kind."""

SAMPLES = sorted(file.parent for file in (ROOT / "examples" / "plugins").glob("*/pyproject.toml"))
SECONDS = 600

Done: TypeAlias = Future[CompletedProcess[str]]


@dataclass(frozen=True)
class Packages:
    """``folders`` are the sources by distribution, all of which are installed in ``environment``."""

    environment: CleanEnvironment
    folders: Mapping[str, Path]


def distribution(plural: str) -> str:
    """The distribution of the new plugin of a kind."""
    return names_of(KINDS[plural], NEW[plural]).distribution


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for the environment."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.packages)
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def packages() -> Iterator[Packages]:
    """Skips where pip finds no index, and fails there in CI."""
    # Not a temporary folder of pytest's, three of which stay: this one holds torch.
    with TemporaryDirectory(prefix="miles-packages-") as temporary:
        work = Path(temporary)
        folders = {**_written(work / "new"), **_copied(work / "samples")}
        hub_wheels, wheels = work / "hub", work / "wheels"
        build_wheels([copy_of_miles_hub(_made(work / "miles-hub"))], hub_wheels)
        build_wheels(list(folders.values()), wheels)
        environment = CleanEnvironment(work / "venv")
        (wheel,) = hub_wheels.iterdir()
        needs_index = environment.install("torch", f"{wheel}[testing]", cwd=work)
        if needs_index.returncode:
            reason = f"pip cannot install the dependencies of miles-hub: {needs_index.stderr[-2000:]}"
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
        installed = environment.install("--no-index", *(f"{wheel}[test]" for wheel in wheels.iterdir()), cwd=work)
        assert installed.returncode == 0, installed.stdout + installed.stderr
        yield Packages(environment, folders)


@pytest.fixture(scope="session")
def pool(packages: Packages) -> Iterator[ThreadPoolExecutor]:
    """Two programs run beside each other: most of what they do is importing torch."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture(scope="session")
def own_tests(packages: Packages, pool: ThreadPoolExecutor) -> Mapping[str, Done]:
    """A pytest call for each package, by distribution."""
    run, command = packages.environment.run, ("python", "-m", "pytest", "-W", "error", "-p", "no:cacheprovider")
    return {name: pool.submit(run, *command, cwd=folder) for name, folder in packages.folders.items()}


@pytest.fixture(scope="session")
def checks(packages: Packages, pool: ThreadPoolExecutor) -> Mapping[str, Done]:
    """``miles plugins check`` of each new plugin, by kind."""
    run, cwd = packages.environment.run, next(iter(packages.folders.values())).parent
    return {
        plural: pool.submit(run, "miles", "plugins", "check", f"{distribution(plural)}/{name}", cwd=cwd)
        for plural, name in NEW.items()
    }


def _written(folder: Path) -> dict[str, Path]:
    found = {}
    for plural, name in NEW.items():
        names = names_of(KINDS[plural], name)
        found[names.distribution] = folder / names.distribution
        write(render(names), found[names.distribution])
    return found


def _copied(folder: Path) -> dict[str, Path]:
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    return {sample.name: Path(shutil.copytree(sample, folder / sample.name, ignore=ignored)) for sample in SAMPLES}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
