"""Functions as a user of slime has them: in a module of their own, loaded through the hub by import path."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from miles_core.kinds import PluginContext
from miles_core.plugins import Hub

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONFIG: dict[str, Any] = {
    "run": {"seed": 7, "steps": 3, "placement": "disaggregated"},
    "model": {"path": "model"},
    "rollout": {
        "groups_per_step": 4,
        "group_size": 8,
        "max_turns": 3,
        "max_context_tokens": 64,
        "max_response_tokens": 16,
        "max_concurrency": 256,
        "over_sampling": 1.5,
    },
    "sampling": {"temperature": 0.8},
    "objective": {"mini_batches": 2},
    "rewards": [{"use": "exact_match"}],
}


@dataclass
class Slime:
    """A hub, and where modules are written for it."""

    folder: Path
    hub: Hub

    def module(self, name: str, source: str) -> None:
        path = self.folder / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source), "utf-8")
        importlib.invalidate_caches()

    def make(self, kind: str, source: str, name: str, options: dict[str, Any] | None = None, **services: Any) -> Any:
        """The object of the function ``name`` in a module that holds ``source``."""
        module = f"slime_functions_{len(list(self.folder.iterdir()))}"
        self.module(module, source)
        ref = self.hub.resolve(kind, f"{module}:{name}")
        model = self.hub.config_model(ref, "slime")
        assert model is not None
        context = PluginContext(services={"config": CONFIG, "base_dir": "/base", **services})
        return self.hub.create(kind, ref, model.model_validate(options or {}), context, adapter="slime")


@pytest.fixture
def slime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slime]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield Slime(tmp_path, Hub.discover())
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
