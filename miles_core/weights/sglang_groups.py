"""The process groups in which the trainer meets engines of SGLang: one for each engine, with all of its ranks."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio.to_thread

from miles_core.errors import WeightSyncError
from miles_core.weights.exchange import Call
from miles_core.weights.sglang_calls import reply_value
from miles_core.weights.sglang_sessions import server_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from miles_core.weights.exchange import EngineExchange
    from miles_core.weights.sglang_sessions import ServerFacts

_SHARE = 0.4
"""Of an exchange's time, for meeting and for sending each: together they are one exchange with the trainer."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where an engine's ranks meet the trainer, which is rank 0 of ``world_size``, within ``timeout`` seconds."""

    name: str
    address: str
    port: int
    world_size: int
    backend: str
    timeout: float


class EngineGroups:
    """The groups that exist, and those that are to be made."""

    def __init__(self) -> None:
        self._meetings: dict[str, Meeting] = {}
        self._joined: dict[str, int | None] = {}
        """The version that was committed last, of each engine that is in its group."""
        self._left: dict[str, list[str]] = {}

    async def prepare(self, engines: EngineExchange) -> None:
        """Keep the groups of engines that are as they were; plan new ones for all others."""
        servers = await server_facts(engines)
        facts = await engines.all("/model_info", None, stage="asking for the version")
        for url in engines.urls:
            committed, says = self._joined.get(url), reply_value(facts[url], "weight_version")
            if committed is None or says != str(committed):  # new, or started again
                self.forget([url])
        for url in engines.urls:
            if url not in self._meetings:
                await self._arrange(engines, url, servers[url])

    def opening(self, urls: Sequence[str]) -> dict[str, Any]:
        """What the trainer must know: all groups, and the names of those that get this update, in the order given."""
        return {
            "groups": [asdict(meeting) for meeting in self._meetings.values()],
            "active": [self._meetings[url].name for url in urls],
        }

    def name(self, url: str) -> str:
        """That of an engine's group."""
        return self._meetings[url].name

    async def join(self, engines: EngineExchange) -> None:
        """Have engines that are new join; they wait for the trainer, and it for them."""
        new = [url for url in engines.urls if url not in self._joined]
        if not new:
            return
        for url in new:
            await self._clean(engines, url)
        calls = [Call(url, "/init_weights_update_group", _invitation(self._meetings[url])) for url in new]
        await engines.gather(calls, stage="joining the trainer's process group")
        self._joined.update(dict.fromkeys(url for url in new if url not in engines.lost))

    def committed(self, engines: EngineExchange, version: int) -> None:
        """Note which engines hold ``version``; engines that do not are not waited for in their old groups."""
        self._joined.update(dict.fromkeys(engines.urls, version))
        self.forget([url for url, held in self._joined.items() if held != version])

    def forget(self, urls: Iterable[str]) -> None:
        """Give up the groups of engines; the trainer leaves them when it is told of the others."""
        for url in list(urls):
            self._joined.pop(url, None)
            if (meeting := self._meetings.pop(url, None)) is not None:
                self._left.setdefault(url, []).append(meeting.name)

    async def _arrange(self, engines: EngineExchange, url: str, server: ServerFacts) -> None:
        try:
            self._meetings[url] = await anyio.to_thread.run_sync(_meeting, url, server, engines.timeout * _SHARE)
        except WeightSyncError as error:
            engines.lose(url, error)

    async def _clean(self, engines: EngineExchange, url: str) -> None:
        """Have an engine leave its earlier groups; one that was started again knows nothing of them."""
        for name in self._left.pop(url, ()):
            with suppress(WeightSyncError):
                body = {"group_name": name}
                await engines.call(Call(url, "/destroy_weights_update_group", body), stage="leaving an old group")


def _invitation(meeting: Meeting) -> dict[str, Any]:
    return {
        "master_address": meeting.address,
        "master_port": meeting.port,
        "rank_offset": 1,
        "world_size": meeting.world_size,
        "group_name": meeting.name,
        "backend": meeting.backend,
    }


def _meeting(url: str, server: ServerFacts, timeout: float) -> Meeting:
    address, port = _free_address(url)
    backend = "gloo" if server.device == "cpu" else "nccl"
    return Meeting(f"miles-{secrets.token_hex(8)}", address, port, 1 + server.ranks, backend, timeout)


def _free_address(url: str) -> tuple[str, int]:
    """This host's address as the engine sees it, and a free port: the trainer runs here, as a child of this process."""
    parts = urlsplit(url)
    try:
        family, kind, protocol, _, there = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(there)  # sends nothing; it only chooses a route
            address = str(probe.getsockname()[0])
        with socket.create_server((address, 0), family=family) as free:
            return address, int(free.getsockname()[1])
    except OSError as error:
        raise WeightSyncError(
            f"engine {url}: this host finds no address of its own towards it: {error}",
            remedy="See whether the engine's host name resolves here.",
        ) from error
