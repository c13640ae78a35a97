"""A port for a server that binds it a minute later."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def held_port(host: str, port: int) -> Iterator[int]:
    """Hold ``port``, or a free one for 0, so that nobody else gets it until the server listens.

    A bound socket that does not listen shares its port with one listener, where both set ``SO_REUSEADDR`` as uvicorn
    does. Meanwhile the system gives the port to no one who asks for any free one.

    Raises:
        EngineError: if the address cannot be bound.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        held = socket.socket(family, kind, protocol)
    except OSError as error:
        raise EngineError(f"engine.host = {host!r} is no address of this machine: {error}") from None
    with held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(address)
        except OSError as error:
            raise EngineError(
                f"the engine cannot listen on {host}:{port}: {error.strerror}",
                remedy="Stop what uses the port, choose another engine.port, or set it to 0 for a free one.",
            ) from None
        yield int(held.getsockname()[1])
