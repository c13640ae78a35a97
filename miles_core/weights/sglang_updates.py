"""Updates of SGLang by its own loader: it reads all buckets from a folder in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from miles_core.types import Opening
from miles_core.weights.plan import whole_plan
from miles_core.weights.sglang_calls import compare, flush, name_version
from miles_core.weights.staged_files import check_files, check_unchanged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.types import Layout
    from miles_core.weights.exchange import EngineExchange
    from miles_core.weights.plan import Plan
    from miles_core.weights.ports import Sender, Staged
    from miles_core.weights.publish import PauseMode


class SglangUpdates:
    """Loads by ``/update_weights_from_disk`` and commits by ``/update_weight_version``, on engines that are paused.

    The load names no version: it would take effect on each engine by itself, before the others have loaded. When a load
    fails, SGLang loads again from the same folder, which it calls a roll back; what it holds then is not to be trusted.
    Written from the source of SGLang 0.5.23.
    """

    def __init__(self, transport: str, pause_mode: PauseMode) -> None:
        self.transport = transport
        self._pause_mode = pause_mode
        self._torn: set[str] = set()
        self._staged: list[Staged] = []

    async def plan(self, engines: EngineExchange, source: Layout, bucket_bytes: int) -> Plan:
        """Whole tensors: SGLang publishes no layout here; it casts and cuts what the trainer has."""
        return whole_plan(source, bucket_bytes)

    async def prepare(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> None:
        """Write all files."""
        await sender.open(self.transport, Opening(version))
        self._staged = [await sender.stage(bucket) for bucket in plan.buckets]

    async def begin(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> None:
        """Nothing to open."""

    async def move(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> Sequence[Staged]:
        """Check the files, and have every engine load them."""
        folder, marks = await anyio.to_thread.run_sync(check_files, self._staged)
        body = {"model_path": str(folder), "load_format": "auto", "flush_cache": False}
        # Shielded: files that vanish under a load would end the server.
        with anyio.CancelScope(shield=True):
            self._torn.update(engines.urls)
            await engines.accepted("/update_weights_from_disk", body, stage=f"load of version {version}")
        await anyio.to_thread.run_sync(check_unchanged, self._staged, marks)
        return self._staged

    async def verify(self, engines: EngineExchange, version: int, plan: Plan, moved: Sequence[Staged]) -> None:
        """Compare what engines of one kind hold."""
        await flush(engines, engines.urls, required=self._pause_mode != "in_place")
        await compare(engines)

    async def commit(self, engines: EngineExchange, version: int, plan: Plan) -> None:
        """Name the weights, and see that each engine says so."""
        await name_version(engines, engines.urls, version)
        self._torn.difference_update(engines.urls)

    async def abort(self, engines: EngineExchange, url: str, version: int) -> str | None:
        """Nothing to undo; an engine that was told to load must not serve."""
        return "it began to load an update that failed; publish again or restart it" if url in self._torn else None
