"""Updates of SGLang by ``/update_weights_from_tensor``: every rank opens the trainer's shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from miles_core.types import Opening
from miles_core.weights.exchange import Call
from miles_core.weights.sglang_loads import SglangLoads
from miles_core.weights.sglang_sessions import server_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.types import Bucket
    from miles_core.weights.exchange import EngineExchange
    from miles_core.weights.plan import Plan
    from miles_core.weights.ports import Sender, Staged
    from miles_core.weights.publish import PauseMode


class SglangTensorUpdates(SglangLoads):
    """Loads bucket by bucket into engines that are paused; names the version only when all hold all of it.

    A delivery's ``serialized`` is what each rank unpickles. Written from the source of SGLang 0.5.23.
    """

    def __init__(self, transport: str, pause_mode: PauseMode) -> None:
        super().__init__(transport, pause_mode)
        self._ranks: dict[str, int] = {}

    async def prepare(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> None:
        """Count the ranks that will read."""
        self._ranks = {url: facts.ranks for url, facts in (await server_facts(engines)).items()}

    async def begin(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> None:
        """Open the update."""
        await sender.open(
            self.transport, Opening(version, group={"readers": sum(self._ranks[url] for url in engines.urls)})
        )
        await self._sessions.begin(engines, version)

    async def move(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> Sequence[Staged]:
        """Stage each bucket, have every engine load it, free it."""
        return [await self._load(engines, bucket, sender) for bucket in plan.buckets]

    async def _load(self, engines: EngineExchange, bucket: Bucket, sender: Sender) -> Staged:
        # Shielded: memory that vanishes under a load would end the server.
        with anyio.CancelScope(shield=True):
            staged = await sender.stage(bucket)
            text = staged.delivery["serialized"]
            calls = [
                Call(
                    url,
                    "/update_weights_from_tensor",
                    {"serialized_named_tensors": [text] * self._ranks[url], "flush_cache": False},
                )
                for url in engines.urls
            ]
            self._sessions.loading(engines)
            await engines.gather(calls, stage=f"load of bucket {bucket.index}")
            await sender.release(staged)
        return staged
