"""A folder where tests install hand-made distributions, as pip would lay them out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from miles_core.plugins.hub import Hub


class Site:
    """Writes metadata folders and modules into ``folder``, which the fixture ``install_plugin`` put on ``sys.path``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(
        self,
        name: str = "acme-plugin",
        *,
        version: str = "1.0",
        requires: Sequence[str] = (),
        module: str | None = None,
        source: str = "",
        **entry_points: Mapping[str, str],
    ) -> Path:
        """Install a distribution with one module; keyword arguments are its entry points by kind.

        ``install_plugin("acme", source=..., reward_models={"short": "acme:short"})`` writes ``acme.py`` and registers
        ``short``; ``hooks=`` is the group of hand-written modules. ``module`` is by default the distribution's name
        with underscores. Returns the metadata folder.
        """
        self.module(module or name.replace("-", "_").replace(".", "_"), source)
        groups = {"miles" if kind == "hooks" else f"miles.{kind}": entries for kind, entries in entry_points.items()}
        return self.install(name, version, groups, requires=requires)

    def install(
        self,
        name: str,
        version: str,
        groups: Mapping[str, Mapping[str, str]],
        *,
        suffix: str = "dist-info",
        requires: Sequence[str] = (),
    ) -> Path:
        """Write the metadata of a distribution, ``dist-info`` or ``egg-info``; ``groups`` are its entry points."""
        info = self.folder / (f"{name}-{version}.dist-info" if suffix == "dist-info" else f"{name}.egg-info")
        info.mkdir(parents=True)
        metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
        metadata += [f"Requires-Dist: {requirement}\n" for requirement in requires]
        (info / ("METADATA" if suffix == "dist-info" else "PKG-INFO")).write_text("".join(metadata), "utf-8")
        lines = [
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
            for group, entries in groups.items()
        ]
        if lines:
            (info / "entry_points.txt").write_text("\n".join(lines), "utf-8")
        return info

    def module(self, name: str, source: str) -> None:
        """Write a module."""
        (self.folder / f"{name}.py").write_text(source, "utf-8")
        importlib.invalidate_caches()

    def hub(self, block: tuple[str, ...] = (), **policy: Any) -> Hub:
        """The plugins of this folder alone; ``policy`` are fields of :class:`PluginPolicy`."""
        from miles_core.plugins.hub import Hub
        from miles_core.plugins.installed.policy import PluginPolicy

        return Hub.discover(PluginPolicy(block=block, **policy), path=[str(self.folder)])
