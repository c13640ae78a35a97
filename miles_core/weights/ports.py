"""What the publisher joins: a fleet of engines, the trainer, and how engines of one kind take an update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.types import Bucket, Layout
    from miles_core.weights.exchange import EngineExchange


class EngineSet(Protocol):
    """The engines of a run, whose number may change."""

    @property
    def urls(self) -> Sequence[str]:
        """The engines that live now."""


class TrainerWeights(Protocol):
    """The trainer's side of an update, as the driver reaches it."""

    async def layout(self) -> Layout:
        """Where the trained model keeps its checkpoint tensors."""

    async def stage(self, bucket: Bucket) -> tuple[Mapping[str, Any], str]:
        """Offer a bucket; returns its delivery and its xxh3-128 in hex."""

    async def release(self, delivery: Mapping[str, Any]) -> None:
        """Free a delivery."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A bucket that the trainer offers; ``checksum`` is the xxh3-128 of its bytes, in hex."""

    bucket: Bucket
    delivery: Mapping[str, Any]
    checksum: str


class WeightUpdates(Protocol):
    """How engines of one kind take an update; the publisher pauses them before ``begin`` and resumes them afterwards.

    Every call ends when all engines have answered, and raises ``WeightSyncError`` if one failed. ``at_once`` says that
    engines read all buckets in ``verify``: they are staged before the pause and stay until the commit. Otherwise each
    is staged, received and freed before the next.
    """

    at_once: bool

    async def layouts(self, engines: EngineExchange) -> Sequence[Layout]:
        """What each engine needs; none at all if the engines take whatever the trainer has."""

    async def begin(self, engines: EngineExchange, version: int) -> None:
        """Open the update."""

    async def receive(self, engines: EngineExchange, version: int, staged: Staged) -> None:
        """Hand one bucket over; not called where engines read all at once."""

    async def verify(self, engines: EngineExchange, version: int, staged: Sequence[Staged]) -> None:
        """Make sure that each engine holds exactly these bytes."""

    async def commit(self, engines: EngineExchange, version: int) -> None:
        """Name what the engines hold ``version``."""

    async def abort(self, engines: EngineExchange, url: str, version: int) -> str | None:
        """End the failed update of one engine; returns why it must not serve, or ``None`` if it has its old weights."""
