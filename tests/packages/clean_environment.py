"""A virtual environment with wheels and nothing else: what a user has who installs packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp

ROOT = Path(__file__).parents[2]
PIP = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
OURS = ["miles_core", "miles_plugins", "middleware_hub", "rm_hub", "filter_hub"]


class CleanEnvironment:
    """Programs run with its interpreter, and find nothing of this repository but what is installed."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True, symlinks=True)
        self.scripts = folder / "bin"
        self._temporary = folder / "tmp"
        self._temporary.mkdir()

    def run(
        self, *command: object, cwd: Path, timeout: float = 120, path: Sequence[Path] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -m ...`` or a script of the environment; ``path`` comes first in its ``PATH``."""
        program, *rest = map(str, command)
        # Each has its own: two pytests that tidy up one folder at once warn, and warnings are errors.
        temporary = mkdtemp(dir=self._temporary)
        return subprocess.run(
            [str(self.scripts / program), *rest],
            cwd=cwd,
            env={**_without_python_variables(os.environ), "PATH": self._path(path), "TMPDIR": temporary, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    def install(self, *what: str, cwd: Path, timeout: float = 420) -> subprocess.CompletedProcess[str]:
        """``pip install`` with the versions that all tests run with; modules are compiled when they are imported."""
        options = ["--no-compile", "--constraint", str(ROOT / "constraints.txt")]
        return self.run("python", *PIP, "install", *options, *what, cwd=cwd, timeout=timeout)

    def _path(self, first: Sequence[Path]) -> str:
        return os.pathsep.join([*map(str, first), str(self.scripts), os.environ.get("PATH", os.defpath)])


def build_wheels(projects: Sequence[Path], into: Path) -> None:
    """Wheels of project folders, without their dependencies; the builder is this environment's setuptools."""
    command = [sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(into)]
    done = subprocess.run([*command, *map(str, projects)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def copy_of_miles_hub(folder: Path) -> Path:
    """This repository's package, to be built where setuptools may leave its build folder."""
    for name in OURS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def _without_python_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value for key, value in environ.items() if not key.startswith(("PYTHON", "PYTEST", "MILES", "VIRTUAL"))
    }
