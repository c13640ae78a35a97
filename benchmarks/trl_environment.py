"""TRL's virtual environment: made once from exact pins, kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from miles_core.errors import MilesError

SIDE = Path(__file__).resolve().parent / "trl_side"
PINS = SIDE / "pins.txt"


def trl_python() -> Path:
    """The interpreter of the environment that the pins describe; the first call installs it, which takes minutes.

    Raises:
        MilesError: with the end of pip's output, if it cannot be installed.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256(PINS.read_bytes() + version.encode()).hexdigest()[:16]
    folder = _cache() / f"trl-{key}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if not complete.is_file():
        shutil.rmtree(folder, ignore_errors=True)  # an installation that was broken off
        sys.stderr.write(f"installing TRL into {folder} (once; minutes)\n")
        _call([sys.executable, "-m", "venv", str(folder)])
        _call([str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", str(PINS)])
        complete.touch()
    return python


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "miles-hub"


def _call(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise MilesError(
            f"{' '.join(argv)} failed:\n{done.stderr[-2000:]}",
            remedy="TRL must be installed once: check the network and the package index, then start again.",
        )
