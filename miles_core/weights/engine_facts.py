"""What an engine says of how it can be updated."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from miles_core.types import ParameterTable
from miles_core.weights.exchange import Call, RefusedError, foreign_answer
from miles_core.weights.host import host_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.weights.exchange import EngineExchange

LAYOUT = "asking for the layout"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What one engine has: ``ranks`` is ``None`` without a receiver of ours.

    ``transports`` says by name why one cannot be used there, or ``None``; ``same_host``: it shares our memory.
    """

    url: str
    ranks: tuple[ParameterTable, ...] | None
    same_host: bool
    transports: Mapping[str, str | None] = field(default_factory=dict)

    def why_not(self, transport: str) -> str | None:
        """Why our receiver there cannot take it by this transport; ``None`` if it can."""
        if self.ranks is None:
            return f"engine {self.url} has no receiver of ours"
        return self.transports.get(transport, f"engine {self.url} has no transport {transport}")


async def ask_facts(engines: EngineExchange, url: str) -> EngineFacts:
    """The facts of one engine.

    Raises:
        WeightSyncError: if it does not answer, or its receiver is of another version.
    """
    try:
        text = await engines.call(Call(url, "/weights/layout"), stage=LAYOUT)
    except RefusedError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return EngineFacts(url, None, _is_loopback(url))
    return read_facts(url, text)


def read_facts(url: str, text: str) -> EngineFacts:
    """The facts in a reply to ``GET /weights/layout``.

    Raises:
        WeightSyncError: if it is of another version.
    """
    try:
        said: dict[str, Any] = json.loads(text)
        ranks = tuple(ParameterTable.from_json(one) for one in said["ranks"])
        host, transports = said.get("host", ""), dict(said.get("transports", {}))
        if not ranks:
            raise ValueError("it has no rank")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise foreign_answer(url, "/weights/layout", error) from error
    return EngineFacts(url, ranks, (host == host_id()) if host else _is_loopback(url), transports)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
