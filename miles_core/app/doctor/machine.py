"""Checks of the machine: cores, memory, disks, ports and limits."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from pathlib import Path

from miles_core.app.doctor.finding import Finding

GIB = 2**30
SHM = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory, not a place for temporary files
SHM_BYTES = GIB
DISK_BYTES = 5 * GIB
MEMORY_BYTES = 2 * GIB
OPEN_FILES = 4096


def machine() -> list[Finding]:
    """All of this module's checks; each takes milliseconds."""
    return [
        cores_and_memory(),
        shared_memory(),
        disk("disk of runs/", Path("runs"), required=True),
        disk("disk of cache", cache_folder()),
        loopback(),
        open_files(),
    ]


def cores_and_memory(meminfo: Path = Path("/proc/meminfo")) -> Finding:
    """Cores that this process may use, and the memory that is free."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = _available(meminfo)
    if free is None:
        return Finding("cores, memory", "ok", f"{cores} cores, free memory unknown")
    found = f"{cores} cores, {free / GIB:.1f} GiB of memory free"
    if free < MEMORY_BYTES:
        remedy = "Trainer and engine each hold the model: end other programs, or train a smaller one."
        return Finding("cores, memory", "problem", found, remedy)
    return Finding("cores, memory", "ok", found)


def _available(meminfo: Path) -> int | None:
    """Free memory of the machine, or what is left of a container's limit if that is less."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        left = int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no limit reads "max"
        return free
    return max(0, min(free, left))


def shared_memory(folder: Path = SHM) -> Finding:
    """Where the transport `memory` hands weights to engines."""
    name = str(folder)
    if not folder.is_dir():
        return Finding(name, "missing", "not there", 'Mount it, or set another [weights] use than "memory".')
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.1f} GiB free"
    if not os.access(folder, os.W_OK) or free < SHM_BYTES:
        remedy = "Enlarge it (docker run --shm-size=8g) and make it writable, or lower weights.bucket_bytes."
        return Finding(name, "problem", found, remedy)
    return Finding(name, "ok", found)


def cache_folder() -> Path:
    """The folder of caches, by the XDG convention."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "miles-hub"


def disk(name: str, folder: Path, *, required: bool = False) -> Finding:
    """Free space where ``folder`` is or will be."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    found = f"{free / GIB:.0f} GiB free in {place}"
    if not os.access(place, os.W_OK):
        return Finding(name, "problem", f"{place} is not writable", "Start miles in another folder.", required=required)
    if free < DISK_BYTES:
        remedy = "Free some, lower checkpoint.keep, or set run.dir: a checkpoint has the size of the model, or more."
        return Finding(name, "problem", found, remedy)
    return Finding(name, "ok", found, required=required)


def loopback() -> Finding:
    """Router and engines listen on ports of 127.0.0.1."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=5),
        ):
            return Finding("loopback ports", "ok", "127.0.0.1 can be bound and reached", required=True)
    except OSError as error:
        remedy = "Allow binding to 127.0.0.1; router and engines talk over it."
        return Finding("loopback ports", "problem", str(error), remedy, required=True)


def open_files() -> Finding:
    """Each request in flight takes some files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    found = "unlimited" if soft == endless else f"{soft} (at most {'any' if hard == endless else hard})"
    if soft != endless and soft < OPEN_FILES:
        return Finding("open files", "problem", found, f"Run `ulimit -n {OPEN_FILES}` before miles.")
    return Finding("open files", "ok", found)
