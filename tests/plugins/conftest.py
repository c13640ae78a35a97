"""A folder on ``sys.path`` where tests install hand-made distributions."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from miles_core.plugins import Hub
from miles_core.plugins.policy import PluginPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class Site:
    """Writes metadata folders and modules as pip would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self, name: str, version: str, groups: Mapping[str, Mapping[str, str]], *, suffix: str = "dist-info"
    ) -> Path:
        info = self.folder / (f"{name}-{version}.dist-info" if suffix == "dist-info" else f"{name}.egg-info")
        info.mkdir(parents=True)
        metadata = "METADATA" if suffix == "dist-info" else "PKG-INFO"
        (info / metadata).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
            for group, entries in groups.items()
        ]
        if lines:
            (info / "entry_points.txt").write_text("\n".join(lines))
        return info

    def module(self, name: str, source: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{name}.py").write_text(source)
        importlib.invalidate_caches()

    def hub(self, block: tuple[str, ...] = ()) -> Hub:
        return Hub.discover(PluginPolicy(block=block), path=[str(self.folder)])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield Site(folder)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
