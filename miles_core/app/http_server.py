"""One way to serve an ASGI app: bind first, say where, die with the parent."""

from __future__ import annotations

import errno
import socket
import sys
from typing import TYPE_CHECKING, Any

import uvicorn

from miles_core.app.child import is_child, report

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from miles_core.errors import MilesError

# Clients keep connections open between steps; a server that closes them first breaks the next request.
KEEP_ALIVE_SECONDS = 3600


class _ReportingServer(uvicorn.Server):
    url = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and not self.should_exit:
            if not is_child():
                sys.stderr.write(f"serving on {self.url}\n")
            report({"url": self.url})


def bind(host: str, port: int, error: type[MilesError], what: str) -> socket.socket:
    """A listening socket; ``port`` 0 picks a free one.

    Raises:
        MilesError: of class ``error``, if the port is in use or may not be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only where the protocol is named; with it, every answer takes 40 ms more.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(2048)
    except OSError as cause:
        bound.close()
        used = cause.errno == errno.EADDRINUSE
        remedy = f"Choose another {what} port, or 0 for any free one" + (", or stop what uses it." if used else ".")
        raise error(f"the {what} cannot listen on {host}:{port}: {cause.strerror}", remedy=remedy) from cause
    return bound


def url_of(bound: socket.socket, host: str | None = None) -> str:
    """The URL of a socket, at its own address or at another one of this host."""
    own, port = bound.getsockname()[:2]
    host = host or own
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server_config(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """How every server of ours serves an app."""
    return uvicorn.Config(
        app,
        http="httptools",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=2,
        **options,
    )


def run_server(app: ASGIApp, bound: socket.socket, **options: Any) -> None:
    """Serve until the process is told to end."""
    server = _ReportingServer(server_config(app, **options))
    server.url = url_of(bound)
    server.run(sockets=[bound])
