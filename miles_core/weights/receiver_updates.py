"""Updates of engines that hold our receiver: each bucket goes into the live parameters as it comes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from miles_core.errors import WeightSyncError
from miles_core.lib.tasks import single_error, task_group
from miles_core.types import Opening, ParameterTable, StreamTargets
from miles_core.weights.engine_facts import LAYOUT, read_facts
from miles_core.weights.exchange import Call, RefusedError, foreign_answer
from miles_core.weights.misfits import misfits
from miles_core.weights.plan import Receiver, make_plan
from miles_core.weights.sglang_calls import flush, name_version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from miles_core.types import Bucket, Layout
    from miles_core.weights.exchange import EngineExchange
    from miles_core.weights.plan import Plan
    from miles_core.weights.ports import Sender, Staged
    from miles_core.weights.publish import PauseMode

    LayoutOf: TypeAlias = Callable[[ParameterTable, Layout], Layout]


class ReceiverUpdates:
    """Calls ``/weights/*``, which :class:`~miles_core.weights.receive.WeightReceiver` answers on each rank.

    ``layout_of`` makes the layout of a rank from its parameters and what the trainer sends.
    """

    def __init__(self, transport: str, layout_of: LayoutOf, pause_mode: PauseMode = "in_place") -> None:
        self.transport = transport
        self._pause_mode = pause_mode
        self._layout_of = layout_of
        self._tables: dict[str, tuple[ParameterTable, ...]] = {}
        self._planned: tuple[object, Plan] | None = None
        self._receivers: list[list[Receiver]] = []

    async def plan(self, engines: EngineExchange, source: Layout, bucket_bytes: int) -> Plan:
        """Ask engines that are new for their parameters; the plan is made anew only where those differ."""
        await self._ask(engines)
        tables = {url: self._tables[url] for url in engines.urls}
        if self._planned is None or self._planned[0] != (tables, source):
            layouts: dict[Receiver, Layout] = {}
            for url, ranks in tables.items():
                try:
                    layouts |= {Receiver(url, rank): self._layout_of(table, source) for rank, table in enumerate(ranks)}
                except WeightSyncError as error:
                    engines.lose(url, RefusedError(error.message, remedy=error.remedy))
            for url, problem in misfits(source, layouts).items():
                engines.lose(url, RefusedError(problem, remedy="Let trainer and engines build the same model."))
            fitting = {one: layout for one, layout in layouts.items() if one.engine not in engines.lost}
            tables = {url: self._tables[url] for url in engines.urls}
            self._planned = (tables, source), make_plan(source, fitting, bucket_bytes)
        return self._planned[1]

    async def prepare(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> None:
        """Nothing before the pause."""

    async def begin(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> None:
        """Open the update on every rank, and tell the trainer what they offer."""
        receivers = [one for stream in plan.streams for one in stream.receivers if one.engine in engines.urls]
        body = {"version": version, "transport": self.transport}
        replies = await self._each(engines, receivers, "begin", body, f"begin of version {version}")
        begun = {one: reply for one, reply in replies.items() if one.engine in engines.urls}
        self._receivers = [[one for one in stream.receivers if one in begun] for stream in plan.streams]
        targets = tuple(
            StreamTargets(
                stream.layout.placements,
                tuple(begun[one]["offer"] for one in self._receivers[number]),
                tuple(begun[one]["base"] for one in self._receivers[number]),
            )
            for number, stream in enumerate(plan.streams)
        )
        await sender.open(self.transport, Opening(version, targets))

    async def move(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> Sequence[Staged]:
        """Have each rank fetch its buckets, while the trainer packs the next one."""
        moved: list[Staged] = []
        sending, receiving = anyio.create_memory_object_stream["Staged"](0)
        with single_error(), receiving:
            async with task_group() as tasks:
                tasks.start_soon(_stage_all, plan.buckets, sender, sending)
                await self._receive_all(engines, version, sender, receiving, moved)
        return moved

    async def verify(self, engines: EngineExchange, version: int, plan: Plan, moved: Sequence[Staged]) -> None:
        """Have each rank compare what it holds with the checksums."""
        calls = []
        for number in range(len(plan.streams)):
            sums = {str(one.bucket.index): one.checksums for one in moved if one.bucket.stream == number}
            body = {"version": version, "checksums": sums}
            calls += [_call(one, "verify", body) for one in self._live(engines, number)]
        await engines.gather(calls, stage="verify")
        await flush(engines, self._sglang(engines), required=self._pause_mode != "in_place")

    async def commit(self, engines: EngineExchange, version: int, plan: Plan) -> None:
        """Commit on every rank."""
        calls = []
        for number, stream in enumerate(plan.streams):
            body = {"version": version, "padding": stream.layout.padding}
            calls += [_call(one, "commit", body) for one in self._live(engines, number)]
        await engines.gather(calls, stage="commit")
        await name_version(engines, self._sglang(engines), version)

    async def abort(self, engines: EngineExchange, url: str, version: int) -> str | None:
        """Abort every rank; each says whether it holds a mixture, or has committed already."""
        reasons: list[str] = []
        for rank in range(len(self._tables.get(url, ()))):
            text = await engines.call(_call(Receiver(url, rank), "abort", {}), stage="abort")
            status = _object(url, text, "abort", ("torn", "version"))
            if status["torn"] or status["version"] >= version:
                reasons.append(f"rank {rank}: {status}")
        return "; ".join(reasons) or None

    def _sglang(self, engines: EngineExchange) -> list[str]:
        """Engines that flush and name their version by SGLang's own verbs."""
        return [url for url in engines.urls if self._tables[url][0].naming == "sglang"]

    async def _ask(self, engines: EngineExchange) -> None:
        """Ask every engine, since another one may listen at the same address by now."""
        for url, text in (await engines.all("/weights/layout", None, stage=LAYOUT)).items():
            try:
                self._tables[url] = read_facts(url, text).ranks or ()
            except WeightSyncError as error:
                engines.lose(url, error)

    async def _each(
        self, engines: EngineExchange, receivers: Sequence[Receiver], verb: str, body: dict[str, Any], stage: str
    ) -> dict[Receiver, dict[str, Any]]:
        replies = await engines.gather([_call(one, verb, body) for one in receivers], stage=stage)
        found: dict[Receiver, dict[str, Any]] = {}
        for number, text in replies.items():
            url = receivers[number].engine
            try:
                found[receivers[number]] = _object(url, text, verb, ("base", "offer"))
            except WeightSyncError as error:
                engines.lose(url, error)
        return found

    async def _receive_all(
        self,
        engines: EngineExchange,
        version: int,
        sender: Sender,
        receiving: MemoryObjectReceiveStream[Staged],
        moved: list[Staged],
    ) -> None:
        async for staged in receiving:
            number = staged.bucket.stream
            for index, reason in staged.delivery.get("failed", {}).items():
                url = self._receivers[number][int(index)].engine
                engines.lose(url, WeightSyncError(f"engine {url}: bucket {staged.bucket.index}: {reason}"))
            body = {"version": version, "bucket": staged.bucket.to_json(), "delivery": dict(staged.delivery)}
            calls = [_call(one, "receive", body) for one in self._live(engines, number)]
            await engines.gather(calls, stage=f"receive of bucket {staged.bucket.index}")
            await sender.release(staged)
            moved.append(staged)

    def _live(self, engines: EngineExchange, stream: int) -> list[Receiver]:
        return [one for one in self._receivers[stream] if one.engine in engines.urls]


async def _stage_all(buckets: Sequence[Bucket], sender: Sender, sending: MemoryObjectSendStream[Staged]) -> None:
    async with sending:
        for bucket in buckets:
            await sending.send(await sender.stage(bucket))


def _call(receiver: Receiver, verb: str, body: dict[str, Any]) -> Call:
    return Call(receiver.engine, f"/weights/{verb}?rank={receiver.rank}", body)


def _object(url: str, text: str, verb: str, keys: Sequence[str]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(text)
        for key in keys:
            found[key]
    except (ValueError, TypeError, KeyError) as error:
        raise foreign_answer(url, f"/weights/{verb}", error) from error
    return found
