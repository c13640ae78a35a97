"""The environment that ``make sglang-cpu`` makes, and a cache of the test's own."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from miles_core.engine.sglang.cpu import install
from miles_core.engine.sglang.cpu.environment import SERVER_ENVIRONMENT, cpu_environment, environment_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the environment would be, in an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return environment_folder()


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``plan(("title", command), ...)``: steps in place of those that install SGLang."""
    return lambda *steps: monkeypatch.setattr(install, "steps", lambda folder: dict(steps))


@pytest.fixture(scope="module")
def in_sglang() -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs code with SGLang's interpreter; skips where there is none, and fails in CI."""
    python = cpu_environment()
    if python is None:
        reason = "there is no SGLang for a CPU; run `make sglang-cpu`"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)

    def run(code: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **SERVER_ENVIRONMENT}
        return subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment, timeout=110)

    return run
