"""SGLang's weight-update sessions: what brackets loads of tensors, and which engines hold a mixture because of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from miles_core.errors import WeightSyncError
from miles_core.weights.exchange import Call, RefusedError

if TYPE_CHECKING:
    from miles_core.weights.exchange import EngineExchange

_BEGIN, _END = "/begin_weight_update", "/end_weight_update"


class LoadSessions:
    """``begin`` makes packed weights loadable, ``end`` packs them again; loads are allowed only in between."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._torn: set[str] = set()

    async def begin(self, engines: EngineExchange, version: int) -> None:
        """Open one on every engine; one that a driver left open which died is ended first."""

        async def one(url: str) -> None:
            stage = f"begin of version {version}"
            try:
                try:
                    await engines.call(Call(url, _BEGIN, {}), stage=stage)
                except RefusedError:
                    await engines.call(Call(url, _END, {}), stage="end of an update that another driver began")
                    await engines.call(Call(url, _BEGIN, {}), stage=stage)
                self._open.add(url)
            except WeightSyncError as error:
                failed[url] = error

        failed: dict[str, WeightSyncError] = {}
        async with anyio.create_task_group() as tasks:
            for url in engines.urls:
                tasks.start_soon(one, url)
        for url, error in failed.items():
            engines.lose(url, error)

    def loading(self, engines: EngineExchange) -> None:
        """Note that every engine is about to be told to load."""
        self._torn.update(engines.urls)

    async def end(self, engines: EngineExchange) -> None:
        """Close those of all engines."""
        await engines.accepted(_END, {}, stage="end of the loads")
        self._open.difference_update(engines.urls)

    def committed(self, engines: EngineExchange) -> None:
        """Note that every engine is whole."""
        self._torn.difference_update(engines.urls)

    async def abort(self, engines: EngineExchange, url: str) -> str | None:
        """Close that of one engine; returns why it must not serve, or ``None`` if it has its old weights."""
        if url in self._open:
            self._open.discard(url)
            await engines.call(Call(url, _END, {}), stage="end of the failed update")
        return "it began to load an update that failed; publish again or restart it" if url in self._torn else None


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """How many ranks of an engine load the same tensors, and on which device."""

    ranks: int
    device: str


async def server_facts(engines: EngineExchange) -> dict[str, ServerFacts]:
    """Those of each engine.

    SGLang's endpoints for tensors refuse data-parallel replicas, and number ranks without regard to pipeline stages;
    engines with either are lost.
    """
    found: dict[str, ServerFacts] = {}
    for url, text in (await engines.all("/server_info", None, stage="asking for the server's settings")).items():
        try:
            said = json.loads(text)
            ranks, replicas, stages = (int(said[name]) for name in ("tp_size", "dp_size", "pp_size"))
            device = str(said["device"])
        except (ValueError, TypeError, KeyError) as error:
            problem = f"engine {url}: /server_info lacks sizes or device: {type(error).__name__} {error}"
            engines.lose(url, RefusedError(problem, remedy="Run SGLang 0.5.23."))
            continue
        if replicas != 1 or stages != 1:
            problem = f"engine {url}: expected dp_size 1 and pp_size 1, got {replicas} and {stages}"
            engines.lose(url, RefusedError(problem, remedy='Set [weights] use = "disk".'))
        else:
            found[url] = ServerFacts(ranks, device)
    return found
