"""The trainer as one update uses it."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from miles_core.errors import MilesError, WeightSyncError
from miles_core.weights.ports import Staged

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from miles_core.types import Bucket, Layout, Opening
    from miles_core.weights.ports import TrainerWeights

_logger = logging.getLogger("miles.weights")


class TrainerError(WeightSyncError):
    """The trainer failed: no engine can be blamed, and none be updated."""


class TrainerSender:
    """Implements :class:`~miles_core.weights.ports.Sender`; each call takes at most ``timeout`` seconds."""

    def __init__(self, trainer: TrainerWeights, timeout: float) -> None:
        self._trainer = trainer
        self._timeout = timeout
        self._held: list[Staged] = []

    async def layout(self) -> Layout:
        """Where the trained model keeps its checkpoint tensors."""
        async with self._asked("asking for the layout"):
            return await self._trainer.layout()

    async def path(self) -> str:
        """Which way the bytes took."""
        async with self._asked("asking which way the bytes took"):
            return await self._trainer.transport_path()

    async def open(self, transport: str, opening: Opening) -> None:
        """Begin to send."""
        async with self._asked(f"opening the transport {transport}"):
            await self._trainer.open_update(transport, opening)

    async def stage(self, bucket: Bucket) -> Staged:
        """Offer a bucket."""
        async with self._asked(f"staging bucket {bucket.index}"):
            delivery, checksums = await self._trainer.stage(bucket)
            staged = Staged(bucket, delivery, tuple(checksums))
            self._held.append(staged)
        return staged

    async def release(self, staged: Staged) -> None:
        """Free what a bucket holds."""
        await self._answers_to_release(staged)

    async def close(self) -> None:
        """Release what is left; a trainer that gives no answer in time is not asked again."""
        while self._held:
            if not await self._answers_to_release(self._held[0]):
                self._held.clear()

    async def _answers_to_release(self, staged: Staged) -> bool:
        self._held.remove(staged)
        try:
            async with self._asked("releasing a delivery"):
                await self._trainer.release(staged.delivery)
        except WeightSyncError as error:
            # It costs memory in the trainer, not correctness; raising would hide why an update failed.
            _logger.warning("%s", error)
            return not isinstance(error.__cause__, TimeoutError)
        return True

    @asynccontextmanager
    async def _asked(self, stage: str) -> AsyncIterator[None]:
        try:
            # Shielded: a cancelled call would leave a delivery in the trainer that no one can name.
            with anyio.fail_after(self._timeout, shield=True):
                yield
        except (MilesError, OSError) as error:
            cause = error.message if isinstance(error, MilesError) else f"{type(error).__name__} {error}".rstrip()
            remedy = error.remedy if isinstance(error, MilesError) else "See whether the trainer runs, and its log."
            raise TrainerError(f"trainer: {stage} failed: {cause}", remedy=remedy) from error
