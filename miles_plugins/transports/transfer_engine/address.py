"""The address at which peers reach this process."""

from __future__ import annotations

import socket

_LOOPBACK = "127.0.0.1"
_ANYWHERE = "192.0.2.1"  # reserved for documents: the default route leads there, and nothing is sent


def routed_address(peer: str | None = None) -> str:
    """Our address on the route to ``peer``, else on the default route; loopback where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer or _ANYWHERE, 9))  # for a datagram socket this only looks the route up
        except OSError:
            return _LOOPBACK
        return str(probe.getsockname()[0])
