"""Our packages, lent to a server whose environment may not have them: a folder for its ``PYTHONPATH``."""

from __future__ import annotations

import importlib.util
import os
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

import miles_core

if TYPE_CHECKING:
    from collections.abc import Mapping

PLUGIN = "miles"
_PACKAGES = ("miles_core", "miles_plugins")
_TRANSPORTS = "miles.weight_transports"
_DISTRIBUTION = "miles-hub"


def lend(folder: Path) -> None:
    """Fill ``folder`` with links to our packages, and metadata with the entry points that a server looks for.

    It comes before the site packages, so where we are installed there as well, or an older version of us, this one is
    found, and only this one.
    """
    folder.mkdir()
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            (folder / package).symlink_to(Path(spec.submodule_search_locations[0]).resolve())
    info = folder / f"miles_hub-{miles_core.__version__}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_DISTRIBUTION}\nVersion: {miles_core.__version__}\n")
    (info / "entry_points.txt").write_text(_entry_points())


def lent_environment(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The variables that make a server find it, added to those that are ``given``."""
    path = given.get("PYTHONPATH")
    lent = {"PYTHONPATH": f"{folder}{os.pathsep}{path}" if path else str(folder)}
    if chosen := given.get("SGLANG_PLUGINS"):  # a list of those to load; without it all are
        lent["SGLANG_PLUGINS"] = f"{chosen},{PLUGIN}"
    return lent


def _entry_points() -> str:
    try:
        ours = list(distribution(_DISTRIBUTION).entry_points.select(group=_TRANSPORTS))
    except PackageNotFoundError:
        ours = []
    transports = "".join(f"{entry.name} = {entry.value}\n" for entry in ours)
    plugin = f"{PLUGIN} = miles_core.app.sglang_receiver:install\n"
    return f"[sglang.srt.plugins]\n{plugin}\n[{_TRANSPORTS}]\n{transports}"
