"""One rank of a server: its receiver, behind a small HTTP server on a unix socket of its own thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from miles_core.app.sglang_receiver.folder import socket_of
from miles_core.app.sglang_receiver.gate import Gate
from miles_core.app.sglang_receiver.host import SchedulerHost
from miles_core.app.sglang_receiver.rearranged import experts_move, rearranged_names
from miles_core.app.sglang_receiver.shard import rank_of_process, shard_of_process
from miles_core.app.sglang_receiver.table import table_of, tensors_of
from miles_core.app.sglang_receiver.transports import make_transport, usable_transports
from miles_core.weights.receive import WeightReceiver
from miles_core.weights.routes import routes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from starlette.requests import Request

    from miles_core.weights.receive import Begun

_DRAFT = "draft."
_RELEASED = "the memory of the weights was released; publish a whole update"


class Receiver(WeightReceiver):
    """A receiver that asks its scheduler first."""

    def __init__(self, host: SchedulerHost, version: int) -> None:
        model, draft = host.model, host.draft_model
        tensors = tensors_of(model)
        rearranged = rearranged_names(model, moved=experts_move())
        if draft is not None:  # no checkpoint tensor has this prefix: such a model cannot be updated whole
            tensors |= tensors_of(draft, prefix=_DRAFT)
        table = table_of(tensors, shard_of_process(), rearranged)
        super().__init__(table, tensors, make_transport, host, version=version)
        self._scheduler_host = host

    def begin(self, version: int, transport: str) -> Begun:
        """As any receiver.

        Raises:
            WeightSyncError: also if this scheduler cannot take an update now.
        """
        self._scheduler_host.check()
        return super().begin(version, transport)

    @property
    def open_version(self) -> int | None:
        """That of the open update."""
        update = self._update
        return None if update is None else update.version


class Rank:
    """What the hooks of a scheduler's process reach."""

    def __init__(self) -> None:
        self.gate = Gate()
        self._receiver: Receiver | None = None

    def serve(self, scheduler: Any) -> None:
        """Answer the front, from a thread of its own, as long as this process lives."""
        from sglang.srt.runtime_context import get_serving  # type: ignore[import-not-found]

        told = str(get_serving().weight_version)
        version = int(told) if told.isdecimal() else 0
        host = SchedulerHost(scheduler, self.gate)
        self._receiver = Receiver(host, version)
        app = Starlette(routes=[*routes(self._receiver, usable_transports), Route("/status", self._status)])
        listening = listen(socket_of(rank_of_process()))
        threading.Thread(target=run, args=(app, listening), name="miles-weights", daemon=True).start()

    @contextmanager
    def discarding(self) -> Iterator[None]:
        """While the block takes the weights' memory away; they are torn from then on."""
        assert self._receiver is not None
        with self._receiver.discarding():
            self.gate.reason = _RELEASED
            yield

    async def _status(self, _: Request) -> JSONResponse:
        assert self._receiver is not None
        return JSONResponse({"open": self._receiver.open_version, "reason": self.gate.reason})


def listen(path: Path) -> socket.socket:
    """A socket that listens at ``path``."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    listening.listen(128)
    return listening


def run(app: Starlette, listening: socket.socket) -> None:
    """Serve on the socket; returns never."""
    config = uvicorn.Config(app, lifespan="off", log_config=None, log_level="warning", access_log=False)
    asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))
