"""A whole verification: the record of a run, its engines, and the checkpoint of the same version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import anyio
from anyio import to_thread

from miles_core.app.run_lock import is_running
from miles_core.app.verify.checkpoint import open_checkpoint
from miles_core.app.verify.engines import ReceiverCheck
from miles_core.app.verify.replicas import check_replicas
from miles_core.app.verify.report import EngineFinding, VerifyReport
from miles_core.app.weights_record import read_record
from miles_core.app.wiring import wire
from miles_core.config.load import load_config
from miles_core.errors import CheckpointError, WeightSyncError
from miles_core.lib.tasks import task_group
from miles_core.weights.engine_facts import ask_facts
from miles_core.weights.exchange import EngineExchange
from miles_core.weights.publish import box_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from miles_core.app.verify.checkpoint import SavedWeights
    from miles_core.app.verify.engines import OnBytes
    from miles_core.app.weights_record import EngineRecord, WeightsRecord
    from miles_core.app.wiring import ModelFacts
    from miles_core.types import Placement

ATTEMPTS = 5
RETRY_SECONDS = 1.0


async def verify_run(
    run_dir: Path,
    step: int | None = None,
    *,
    on_bytes: Callable[[str], OnBytes] = lambda name: lambda done, total: None,
) -> VerifyReport:
    """Compare the engines of a run with what its trainer sent, and that with a checkpoint.

    The checkpoint is that of ``step``, or the newest if it has the committed version. ``on_bytes`` makes, for an engine
    or a checkpoint by name, what hears of its progress. While an update goes on it is tried again a few times.

    Raises:
        CheckpointError: if the run does not run, or has no such checkpoint.
        ConfigError: if its config or model cannot be read.
    """
    loaded = load_config(run_dir / "config.toml")
    timeout = loaded.config.weights.timeout
    model = await to_thread.run_sync(lambda: wire(loaded, run_dir).model)
    async with aiohttp.ClientSession() as http:
        for attempt in range(ATTEMPTS):
            if attempt:
                await anyio.sleep(RETRY_SECONDS)
            if not is_running(run_dir):
                raise CheckpointError(
                    f"the run {run_dir} is not running, so it has no engines to look at",
                    remedy=f"Go on with it: miles train --resume {run_dir}.",
                )
            record = read_record(run_dir)
            saved = await to_thread.run_sync(open_checkpoint, run_dir, step, record.version)
            exchange = EngineExchange([engine.url for engine in record.engines], http, timeout=timeout)
            engines = await _Verification(exchange, record, model, saved, on_bytes).engines()
            if all(engine.settled for engine in engines):
                break
        against = await to_thread.run_sync(saved.compared, record, on_bytes(saved.name)) if saved.same else None
    return VerifyReport(run_dir.name, record.version, record.transport, record.path, engines, against)


@dataclass(frozen=True, slots=True)
class _Verification:
    exchange: EngineExchange
    record: WeightsRecord
    model: ModelFacts
    checkpoint: SavedWeights
    on_bytes: Callable[[str], OnBytes]

    async def engines(self) -> tuple[EngineFinding, ...]:
        """All of them, in the order of the record; those with our receiver side by side."""
        found: dict[str, EngineFinding] = {}
        without: list[EngineRecord] = []

        async def one(engine: EngineRecord) -> None:
            try:
                facts = await ask_facts(self.exchange, engine.url)
                if facts.ranks is None:
                    without.append(engine)
                    return
                found[engine.name] = await self._check(engine.name).check(engine, facts)
            except WeightSyncError as error:
                reason = error.message
                found[engine.name] = EngineFinding(engine.name, engine.url, "failed", reason=reason, settled=False)

        async with task_group() as tasks:
            for engine in self.record.engines:
                if engine.holds:
                    tasks.start_soon(one, engine)
                else:
                    reason = "it was left behind by an update, and serves nothing"
                    found[engine.name] = EngineFinding(engine.name, engine.url, "behind", reason=reason)
        without.sort(key=lambda engine: engine.name)
        for finding in await check_replicas(self.exchange, without, self.record.version):
            found[finding.name] = finding
        return tuple(found[engine.name] for engine in self.record.engines)

    def _check(self, name: str) -> ReceiverCheck:
        return ReceiverCheck(
            self.exchange,
            self.record,
            self.model.layout_of,
            self.checkpoint.tensors.layout,
            self._expected,
            self.on_bytes(name),
        )

    def _expected(self, placement: Placement) -> str:
        """What the trainer sent; of a version that engines loaded by themselves, what the checkpoint holds."""
        if self.record.checksums or not self.checkpoint.same:
            return self.record.checksums.get(box_key(placement), "")
        return self.checkpoint.tensors.checksum(placement.tensor.name, placement.tensor.dtype, placement.region)
