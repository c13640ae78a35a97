"""A served model without generation: what weight updates need of an engine. Runs in a test or as a program."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from contextlib import contextmanager

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from miles_core.api import PluginContext
from miles_core.lib.layout import parameter_table
from miles_core.weights.receive import WeightReceiver
from miles_core.weights.routes import routes
from miles_plugins.bridges.qwen3_moe import Qwen3Moe
from miles_plugins.transports.memory import Memory


class ToyEngine:
    """The receiver's host, and the control endpoints that a publisher calls; ``calls`` are the paths in order.

    ``tensors`` are what it holds, if not those of ``model``. It answers 500 to the paths of ``refuse``, and nothing to
    those of ``hang``.
    """

    def __init__(self, model, transport, *, version=-1, tensors=None, naming="torch"):
        self.model = model
        self.finalised = 0
        self.out_of_service = None
        self.paused = None
        self.version = version
        self.calls = []
        self.refuse = {}
        self.hang = set()
        self._forward = threading.Lock()
        self.tensors = model.state_dict(keep_vars=True) if tensors is None else tensors
        table = parameter_table(self.tensors, naming=naming)
        self.receiver = WeightReceiver(table, self.tensors, lambda name: transport, self, version=version)

    @contextmanager
    def exclusive(self):
        with self._forward:
            yield

    def set_out_of_service(self, reason):
        self.out_of_service = reason

    def finalise(self):
        self.finalised += 1

    def commit_version(self, version):
        self.version = version

    def logits(self, ids):
        with self._forward, torch.no_grad():
            return self.model(torch.tensor([ids])).logits.float()

    @property
    def app(self):
        inner = Starlette(
            routes=[
                *routes(self.receiver, lambda: {"memory": None, "disk": None}),
                Route("/pause_generation", self._pause, methods=["POST"]),
                Route("/continue_generation", self._continue, methods=["POST"]),
                Route("/logits", self._logits, methods=["POST"]),
            ]
        )

        async def recorded(scope, receive, send):
            self.calls.append(scope["path"])
            if scope["path"] in self.refuse:
                return await Response(self.refuse[scope["path"]], status_code=500)(scope, receive, send)
            if scope["path"] in self.hang:
                return await disconnected(receive)
            return await inner(scope, receive, send)

        return recorded

    async def _pause(self, request):
        self.paused = (await request.json())["mode"]
        return Response()

    async def _continue(self, _):
        self.paused = None
        return Response()

    async def _logits(self, request):
        ids = await request.json()
        return JSONResponse({"version": self.version, "logits": self.logits(ids).tolist()})


async def disconnected(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


def uvicorn_server(app):
    return uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))


def listening_socket():
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock, f"http://127.0.0.1:{sock.getsockname()[1]}"


def main(model_path, dtype):
    logging.disable()
    torch.set_num_threads(1)
    context = PluginContext()
    model = Qwen3Moe(None, context).build(model_path, dtype=dtype, init="random", seed=99)
    server = uvicorn_server(ToyEngine(model, Memory(None, context)).app)

    def stop_at_end_of_input():
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    sock, url = listening_socket()
    print(url, flush=True)
    server.run(sockets=[sock])


if __name__ == "__main__":
    main(*sys.argv[1:])
