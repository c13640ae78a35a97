"""Benchmarks are run by hand, so a test sees to it that they still fit the code that they measure."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = [module.name for module in pkgutil.iter_modules([str(BENCHMARKS)]) if module.name != "__main__"]


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS.parent))
    importlib.import_module(f"benchmarks.{name}")
