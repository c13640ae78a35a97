"""What the publisher joins: a fleet of engines, the trainer, and how engines of one kind take an update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.types import Bucket, Layout, Opening
    from miles_core.weights.exchange import EngineExchange
    from miles_core.weights.plan import Plan


class EngineSet(Protocol):
    """The engines of a run, whose number may change."""

    @property
    def urls(self) -> Sequence[str]:
        """The engines that live now."""


class TrainerWeights(Protocol):
    """The trainer's side of an update, as the driver reaches it."""

    async def layout(self) -> Layout:
        """Where the trained model keeps its checkpoint tensors."""

    async def open_update(self, transport: str, opening: Opening) -> None:
        """Begin an update whose buckets go by ``transport``."""

    async def stage(self, bucket: Bucket) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Offer a bucket; returns its delivery and the xxh3-128 of each box in hex."""

    async def release(self, delivery: Mapping[str, Any]) -> None:
        """Free a delivery."""

    async def transport_path(self) -> str:
        """Which way the bytes of the last update took, in words."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A bucket that the trainer offers; ``checksums`` are the xxh3-128 of its boxes, in hex."""

    bucket: Bucket
    delivery: Mapping[str, Any]
    checksums: tuple[str, ...]


class Sender(Protocol):
    """The trainer, as an update uses it; what is staged and not released is released when the update ends.

    All calls raise ``WeightSyncError`` where the trainer fails or does not answer in time.
    """

    async def open(self, transport: str, opening: Opening) -> None:
        """Begin to send."""

    async def stage(self, bucket: Bucket) -> Staged:
        """Offer a bucket."""

    async def release(self, staged: Staged) -> None:
        """Free what a bucket holds, once every receiver has it."""


class WeightUpdates(Protocol):
    """How engines take an update by one ``transport``; the publisher pauses them after ``prepare``, and resumes them.

    An engine that fails is lost from ``engines``, and the update goes on with the others; calls raise
    ``NoEngineError`` when none is left.
    """

    transport: str

    async def plan(self, engines: EngineExchange, source: Layout, bucket_bytes: int) -> Plan:
        """Who gets what; engines that ``source`` does not fit are lost."""

    async def prepare(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> None:
        """What can be done while engines still generate."""

    async def begin(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> None:
        """Open the update."""

    async def move(self, engines: EngineExchange, version: int, plan: Plan, sender: Sender) -> Sequence[Staged]:
        """Bring every bucket to its receivers."""

    async def verify(self, engines: EngineExchange, version: int, plan: Plan, moved: Sequence[Staged]) -> None:
        """Make sure that each engine holds exactly these bytes."""

    async def commit(self, engines: EngineExchange, version: int, plan: Plan) -> None:
        """Name what the engines hold ``version``."""

    async def abort(self, engines: EngineExchange, url: str, version: int) -> str | None:
        """End the failed update of one engine; returns why it must not serve, or ``None`` if it has its old weights."""


class UpdateChoice(Protocol):
    """Which transport an update goes by."""

    async def choose(self, engines: EngineExchange, source: Layout) -> WeightUpdates:
        """The way for these engines.

        Raises:
            WeightSyncError: if there is none, with the reasons.
        """

    def measured(self, transport: str, nbytes: int, seconds: float) -> None:
        """Note how long it took to move so many bytes to each engine."""

    def failed(self, transport: str, reason: str) -> bool:
        """Note that no engine could be updated by a transport; whether there is another one to try."""
