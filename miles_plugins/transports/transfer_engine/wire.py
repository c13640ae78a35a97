"""TCP or RDMA: Mooncake takes the word ``rdma`` where there is no device and silently uses TCP, so we look first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from miles_core.api import WeightSyncError
from miles_plugins.transports.transfer_engine.facade import transfer_engine

_DEVICES = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True)
class Wire:
    """``protocol`` is ``tcp`` or ``rdma``; ``devices`` are those that RDMA may use, ``reason`` is why it is TCP."""

    protocol: str
    devices: tuple[str, ...] = ()
    reason: str = ""

    @property
    def path(self) -> str:
        """In words: ``TCP (no RDMA device)``, ``RDMA over mlx5_0``."""
        return f"RDMA over {', '.join(self.devices)}" if self.protocol == "rdma" else f"TCP ({self.reason})"


def choose_wire(protocol: str, devices: tuple[str, ...], found: tuple[str, ...]) -> Wire:
    """RDMA where it is ``found``, unless ``protocol`` is ``tcp``; ``devices`` restricts it to some.

    Raises:
        WeightSyncError: if RDMA or devices are asked for that are not there.
    """
    if protocol == "tcp":
        return Wire("tcp", reason="as configured")
    present = ", ".join(found) or "none"
    if unknown := [device for device in devices if device not in found]:
        raise WeightSyncError(
            f"[weights] devices names {', '.join(unknown)}; RDMA devices here: {present}",
            remedy='Name devices of this machine, or set protocol = "tcp".',
        )
    if found:
        return Wire("rdma", devices or found)
    if protocol == "rdma":
        raise WeightSyncError(
            '[weights] protocol = "rdma" needs an RDMA device; this machine has none, and Mooncake would use TCP',
            remedy='Set protocol = "auto" or "tcp", or give the container its devices (/dev/infiniband).',
        )
    return Wire("tcp", reason="no RDMA device")


def rdma_devices(folder: Path = _DEVICES) -> tuple[str, ...]:
    """The RDMA devices that the kernel knows and Mooncake can open."""
    known = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if not known:
        return ()  # spares the second that Mooncake takes to look for them
    return tuple(sorted(known & devices_of(transfer_engine().get_local_topology())))


def devices_of(topology: str) -> set[str]:
    """The names of devices in what Mooncake reports of a machine."""
    places: dict[str, list[list[str]]] = json.loads(topology or "{}")
    return {device for groups in places.values() for group in groups for device in group}
