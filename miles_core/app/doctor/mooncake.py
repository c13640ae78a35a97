"""Checks of Mooncake, which moves weights by RDMA, and of what it needs from the machine."""

from __future__ import annotations

from ctypes.util import find_library
from pathlib import Path
from typing import TYPE_CHECKING

from miles_core.app.doctor.finding import Finding
from miles_core.app.doctor.packages import version_of
from miles_core.app.doctor.probe import probe

if TYPE_CHECKING:
    from miles_core.plugins.hub import Hub

WHEELS = {
    "mooncake-transfer-engine": "mooncake",
    "mooncake-transfer-engine-non-cuda": "mooncake-cpu",
}
DEVICES = Path("/sys/class/infiniband")


def mooncake(hub: Hub, devices: Path = DEVICES) -> list[Finding]:
    """The wheel, the library that it loads, and the RDMA devices."""
    return [_wheel(hub), _library(), _devices(devices)]


def _wheel(hub: Hub) -> Finding:
    installed = [f"{name} {version}" for name in WHEELS if (version := version_of(name))]
    used = "mooncake" in {ref.name for ref in hub.refs("weight_transports")}
    unused = "" if used else " No installed weight transport uses it."
    if not installed:
        remedy = "Run `pip install 'miles-hub[mooncake]'`, or `pip install 'miles-hub[mooncake-cpu]'` without CUDA."
        return Finding("mooncake", "missing", "not installed", remedy + unused)
    if len(installed) > 1:
        remedy = f"Both hold the same modules; run `pip uninstall {' '.join(WHEELS)}` and install one again."
        return Finding("mooncake", "problem", " and ".join(installed), remedy)
    result = probe("mooncake.engine")
    if result.failure:
        remedy = "Run `apt-get install libibverbs1 libnuma1`; the wheel must fit CUDA or its absence."
        return Finding("mooncake", "problem", f"{installed[0]}; {result.failure}", remedy)
    return Finding("mooncake", "ok", installed[0] + unused)


def _library() -> Finding:
    name = find_library("ibverbs")
    if name is None:
        return Finding("libibverbs", "missing", "not found", "For Mooncake, run `apt-get install libibverbs1`.")
    return Finding("libibverbs", "ok", name)


def _devices(folder: Path) -> Finding:
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if found:
        return Finding("rdma devices", "ok", ", ".join(found))
    remedy = "None is needed on one host. Between hosts Mooncake uses TCP, which is slower, where there is no RDMA."
    return Finding("rdma devices", "missing", f"none in {folder}", remedy)
