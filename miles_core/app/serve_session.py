"""The main of ``miles serve session``: sessions for any client, in front of any engine or router."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import aiohttp
import anyio

from miles_core.app.child import child_process, report_progress
from miles_core.app.engine_facts import context_of, wait_for_engine
from miles_core.app.functions import session_options
from miles_core.app.http_server import bind, run_server
from miles_core.app.wiring import read_model
from miles_core.config.schema import PluginsTable
from miles_core.config.serving import SessionTable
from miles_core.engine.client import HttpEngineClient
from miles_core.engine.prompt import KEPT_BACK
from miles_core.errors import ConfigError, SessionError
from miles_core.plugins.hub import Hub
from miles_core.plugins.installed.policy import PluginPolicy
from miles_core.session.registry import SessionRegistry
from miles_core.session.served import ClientSession
from miles_core.session.server.app import create_app
from miles_core.session.session import TokenSession
from miles_core.session.startup import describe_sessions
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import MAIN_AGENT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

    from miles_core.session.served import Served
    from miles_core.session.server.opening import OpenRequest
    from miles_core.types import RoutingSpec


@dataclass(frozen=True, slots=True)
class SessionSetup:
    """What a session server stands in front of, and the tables of a config that it needs.

    ``name`` is what clients call the model. ``routed_experts`` asks the engine for the routing of every token, whose
    shape the ``bridge`` tells, by default that of the architecture. ``wait`` are the seconds that the engine may take
    to come up.
    """

    url: str
    model_path: Path
    name: str
    session: SessionTable = field(default_factory=SessionTable)
    plugins: PluginsTable = field(default_factory=PluginsTable)
    bridge: str | None = None
    routed_experts: bool = False
    wait: float = 600.0


def serve_session(setup: SessionSetup) -> None:
    """Serve sessions until the process is told to end.

    Raises:
        ConfigError: if the model directory or an option is wrong.
        SessionError: if the port is in use, or the chat template cannot be continued token by token.
        EngineError: if no engine answers in time.
    """
    with child_process():
        url = setup.url.rstrip("/")
        table = setup.session
        tokenizer = ChatTokenizer.load(setup.model_path)
        options = session_options(table, tokenizer)
        _say(describe_sessions(str(setup.model_path), tokenizer, options))
        routing = _routing(setup) if setup.routed_experts else None
        vocab_size, length = _sizes(setup.model_path, tokenizer)
        bind(table.host, table.port, SessionError, "session server").close()  # or the wait would be for nothing
        info = anyio.run(partial(wait_for_engine, url, setup.wait, _waiting))
        with bind(table.host, table.port, SessionError, "session server") as bound:
            length = context_of(info, length)
            _say(f"engine {url}: contexts of {length} tokens; routed experts {'on' if routing else 'off'}\n")
            client = partial(HttpEngineClient, url, vocab_size=vocab_size, context_length=length, routing=routing)
            opener = _Opener(tokenizer, routing, options, length, table.max_session_tokens)
            registry = SessionRegistry(ttl=table.ttl, max_sessions=table.max_sessions)
            app = create_app(registry, open_session=opener.open, model=setup.name, max_body_bytes=table.max_body_bytes)
            run_server(_with_client(app, opener, client), bound, lifespan="on")


class _Opener:
    """Makes the session for each ``POST /sessions``; ``client`` is set while the server runs."""

    client: HttpEngineClient

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        routing: RoutingSpec | None,
        options: dict[str, Any],
        context_length: int,
        max_tokens: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._routing = routing
        self._options = options
        self._context_length = context_length
        self._max_tokens = max_tokens

    def open(self, wanted: OpenRequest) -> Served:
        unique = uuid4().hex
        session = TokenSession(
            self._tokenizer,
            self.client,
            self._routing,
            task_id=wanted.task_id or unique,
            group_id=wanted.group_id or unique,
            trajectory_id=wanted.trajectory_id or unique,
            agent_id=wanted.agent_id or MAIN_AGENT,
            rid=unique,  # a client may give the same ids to several sessions
            **self._options,
        )
        return ClientSession(
            session,
            context_length=self._context_length,
            kept_back=KEPT_BACK,
            max_tokens=self._max_tokens,
            fixed=wanted.sampling,
        )


def _with_client(app: ASGIApp, opener: _Opener, client: Callable[[aiohttp.ClientSession], HttpEngineClient]) -> ASGIApp:
    """The app with a connection pool to the engine for as long as it is served."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            opener.client = client(http)
            await app(scope, receive, send)

    return served


def _routing(setup: SessionSetup) -> RoutingSpec:
    hub = Hub.discover(PluginPolicy.of(setup.plugins))
    routing = read_model(hub, setup.model_path, setup.bridge).routing
    if routing is None:
        raise ConfigError(
            f"{setup.model_path} is a dense model: it routes nothing", remedy="Leave out --routed-experts."
        )
    return routing


def _sizes(path: Path, tokenizer: ChatTokenizer) -> tuple[int, int]:
    """Rows of the embedding and positions that the model knows, of any architecture's ``config.json``."""
    file = path / "config.json"
    try:
        config = json.loads(file.read_text("utf-8"))
        config = {**config, **(config.get("text_config") or {})}
        length = config["max_position_embeddings"]
        return int(config.get("vocab_size") or tokenizer.vocab_size), int(length)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{file} must name max_position_embeddings, the positions that the model knows: {error!r}",
            remedy="Give a local Hugging Face model directory as --model-path.",
        ) from error


def _say(text: str) -> None:
    sys.stderr.write(text)


def _waiting(problem: str) -> None:
    _say(f"waiting for the engine: {problem}\n")
    report_progress("waiting for the engine")
