"""Asks one engine with our receiver for the checksums of all that it holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from miles_core.app.verify.report import Difference, EngineFinding
from miles_core.errors import WeightSyncError
from miles_core.weights.exchange import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from miles_core.app.verify.report import State
    from miles_core.app.weights_record import EngineRecord, WeightsRecord
    from miles_core.types import Layout, ParameterTable, Placement
    from miles_core.weights.engine_facts import EngineFacts
    from miles_core.weights.exchange import EngineExchange

    LayoutOf: TypeAlias = Callable[[ParameterTable, Layout], Layout]
    Expected: TypeAlias = Callable[[Placement], str]
    OnBytes: TypeAlias = Callable[[int, int], None]

_BYTES, _BOXES = 1 << 28, 1000
"""What one request asks for: an engine answers nothing of its weights meanwhile, nor takes an update."""


@dataclass(frozen=True, slots=True)
class ReceiverCheck:
    """How engines with our receiver are checked.

    ``expected`` is the checksum of a box, empty if no one knows it; ``on_bytes`` hears how many bytes of how many an
    engine has hashed.
    """

    exchange: EngineExchange
    record: WeightsRecord
    layout_of: LayoutOf
    source: Layout
    expected: Expected
    on_bytes: OnBytes = lambda done, total: None

    async def check(self, engine: EngineRecord, facts: EngineFacts) -> EngineFinding:
        """Compare all boxes of all ranks.

        Raises:
            WeightSyncError: if the engine does not answer, or its layout cannot be told.
        """
        assert facts.ranks is not None
        layouts = [self.layout_of(table, self.source) for table in facts.ranks]
        if unclaimed := [one for layout in layouts for one in layout.unclaimed]:
            raise WeightSyncError(f"its layout is not known whole: {unclaimed[0]}")
        placements = [(rank, one) for rank, layout in enumerate(layouts) for one in layout.placements]
        total = sum(one.nbytes for _, one in placements)
        differences = list(self._missing({one.tensor.name for _, one in placements}))
        done = 0
        for rank, asked in _chunks(placements):
            held = await self._ask(engine, rank, asked)
            if (reason := self._unsettled(held)) is not None:
                return EngineFinding(engine.name, engine.url, "failed", reason=reason, settled=False)
            differences += self._compared(rank, asked, held["checksums"])
            done += sum(one.nbytes for one in asked)
            self.on_bytes(done, total)
        state: State = "differs" if differences else "equal"
        return EngineFinding(engine.name, engine.url, state, len(placements), total, tuple(differences))

    def _unsettled(self, held: Mapping[str, Any]) -> str | None:
        """Why what an engine answered is not of the version in question."""
        if held["torn"]:
            return "its weights are torn: an update is going on, or has failed"
        if held["version"] != self.record.version:
            return f"it holds version {held['version']}; the run has committed {self.record.version}"
        return None

    def _missing(self, held: Collection[str]) -> Iterator[Difference]:
        """What was sent of tensors that no rank has."""
        for key, checksum in self.record.checksums.items():
            label = key.rpartition(":")[0]
            if label.partition("[")[0] not in held:
                yield Difference(label, "no rank has it", checksum, "")

    async def _ask(self, engine: EngineRecord, rank: int, asked: Sequence[Placement]) -> dict[str, Any]:
        body = {"placements": [one.to_json() for one in asked]}
        call = Call(engine.url, f"/weights/checksums?rank={rank}", body)
        text = await self.exchange.call(call, stage="asking for checksums")
        try:
            found: dict[str, Any] = json.loads(text)
            fits = len(found["checksums"]) == len(asked) and {"version", "torn"} <= found.keys()
        except (ValueError, TypeError, KeyError):
            fits = False
        if not fits:
            raise WeightSyncError(
                f"engine {engine.url}: /weights/checksums answered what this version does not know: {text[:200]}",
                remedy="Run the same version of miles in driver and engines.",
            )
        return found

    def _compared(self, rank: int, asked: Sequence[Placement], found: Sequence[str]) -> Iterator[Difference]:
        for placement, checksum in zip(asked, found, strict=True):
            if (expected := self.expected(placement)) != checksum:
                yield Difference(placement.label, f"rank {rank}, {placement.parameter}", expected, checksum)


def _chunks(placements: Sequence[tuple[int, Placement]]) -> Iterator[tuple[int, list[Placement]]]:
    """The boxes of one rank after the other, a bounded number of bytes at a time."""
    chunk: list[Placement] = []
    current, held = 0, 0
    for rank, placement in placements:
        if chunk and (rank != current or held + placement.nbytes > _BYTES or len(chunk) == _BOXES):
            yield current, chunk
            chunk, held = [], 0
        current = rank
        chunk.append(placement)
        held += placement.nbytes
    if chunk:
        yield current, chunk
