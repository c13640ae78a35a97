"""The quickstart as a config that tests change, and its model with weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from miles_core.config.load import LoadedConfig, load_config

if TYPE_CHECKING:
    from collections.abc import Callable

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"


@pytest.fixture
def quickstart() -> Callable[..., LoadedConfig]:
    """``quickstart("run.seed=1", ...)``: its config with values set."""
    return lambda *overrides: load_config(QUICKSTART / "config.toml", overrides)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the quickstart's model directory, for tests that break it."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (QUICKSTART / "model").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder
