"""What updates of SGLang by loads of tensors share, whichever way the bytes come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.weights.plan import whole_plan
from miles_core.weights.sglang_calls import compare, flush, name_version
from miles_core.weights.sglang_sessions import LoadSessions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.types import Layout
    from miles_core.weights.exchange import EngineExchange
    from miles_core.weights.plan import Plan
    from miles_core.weights.ports import Staged
    from miles_core.weights.publish import PauseMode


class SglangLoads:
    """Bucket by bucket into engines that are paused; the version is named only when all hold all of it."""

    def __init__(self, transport: str, pause_mode: PauseMode) -> None:
        self.transport = transport
        self._pause_mode = pause_mode
        self._sessions = LoadSessions()

    async def plan(self, engines: EngineExchange, source: Layout, bucket_bytes: int) -> Plan:
        """Whole tensors: SGLang casts and cuts what the trainer has."""
        return whole_plan(source, bucket_bytes)

    async def verify(self, engines: EngineExchange, version: int, plan: Plan, moved: Sequence[Staged]) -> None:
        """Compare what engines of one kind hold."""
        await self._sessions.end(engines)
        await flush(engines, engines.urls, required=self._pause_mode != "in_place")
        await compare(engines)

    async def commit(self, engines: EngineExchange, version: int, plan: Plan) -> None:
        """Name the weights, and see that each engine says so."""
        await name_version(engines, engines.urls, version)
        self._sessions.committed(engines)

    async def abort(self, engines: EngineExchange, url: str, version: int) -> str | None:
        """An engine that was told to load must not serve."""
        return await self._sessions.abort(engines, url)
