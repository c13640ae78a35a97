"""Checkpoints of a run: what the driver adds to the trainer's, taken at one moment and written by the trainer."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio
from anyio import to_thread

from miles_core.errors import MilesError
from miles_core.lib.archive import dump_archive

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from miles_core.app.run_state import RunState
    from miles_core.config.schema import CheckpointTable
    from miles_core.rollout.buffer import StepBuffer
    from miles_core.rollout.scheduler import RolloutScheduler

Result = TypeVar("Result")
SETTLE_SECONDS = 20.0
RUN_FILE = "state/run.json"
ROLLOUT_FILE = "state/rollout.npz"


class SavingTrainer(Protocol):
    """The trainer as the saver needs it."""

    async def save(self, path: Path, files: Mapping[str, bytes], *, keep: int) -> None:
        """Begin to write a checkpoint of the present weights, once the one before it is written."""

    async def check_save(self) -> bool:
        """Whether a save is being written; raises what one in the background failed with."""

    async def wait_save(self) -> None:
        """Wait until the last save is written."""


@dataclass(frozen=True, slots=True)
class Captured:
    """The driver's part of a checkpoint: plain data, and arrays that nobody changes any more."""

    step: int
    files: Mapping[str, bytes]
    rollout: Mapping[str, Any]


def run_file(state: RunState, facts: Mapping[str, Any]) -> dict[str, bytes]:
    """The file that holds a run's own state, by its name in a checkpoint."""
    return {RUN_FILE: json.dumps({"state": state.to_json(), **facts}, indent=1).encode()}


class Saver:
    """Writes ``checkpoints/step-N`` of one run; ``facts`` (config, plugins, ...) go into each.

    ``on_saved`` is called once with step and path of each checkpoint that is whole, in order.
    """

    def __init__(
        self,
        trainer: SavingTrainer,
        folder: Path,
        table: CheckpointTable,
        scheduler: RolloutScheduler,
        buffer: StepBuffer,
        *,
        facts: Mapping[str, Any],
        last_step: int,
        on_saved: Callable[[int, Path], Awaitable[None]] | None = None,
    ) -> None:
        self._trainer = trainer
        self._folder = folder
        self._table = table
        self._scheduler = scheduler
        self._buffer = buffer
        self._facts = facts
        self.last_step = last_step
        self._on_saved = on_saved
        self._writing: list[int] = []

    def capture(self, state: RunState) -> Captured:
        """The run's state now; nothing may be awaited between the end of a step and this."""
        rollout = {"scheduler": self._scheduler.state(), "buffer": self._buffer.state()}
        return Captured(state.step, run_file(state, self._facts), rollout)

    async def save(self, captured: Captured) -> None:
        """Begin a checkpoint with the trainer's present weights; with ``write_async`` off, wait for its end.

        Raises:
            CheckpointError: if this one, or the one before it, cannot be written.
        """
        rollout = await to_thread.run_sync(dump_archive, captured.rollout)
        files = {**captured.files, ROLLOUT_FILE: rollout}
        self._writing.append(captured.step)
        path = self._folder / f"step-{captured.step}"
        await self._or_none(self._trainer.save(path, files, keep=self._table.keep))
        self.last_step = captured.step
        await self._whole(self._writing[:-1])  # the trainer writes one at a time
        if not self._table.write_async:
            await self.wait()

    async def check(self) -> None:
        """Raise what a save in the background failed with.

        Raises:
            CheckpointError: if it did.
        """
        if self._table.write_async and not await self._or_none(self._trainer.check_save()):
            await self._whole(self._writing)

    async def wait(self) -> None:
        """Wait until the last save is on the disk.

        Raises:
            CheckpointError: if it cannot be written.
        """
        await self._or_none(self._trainer.wait_save())
        await self._whole(self._writing)

    async def settle(self) -> None:
        """After a failed or cancelled run: give a save that is being written some time to end."""
        if self._writing:
            with anyio.move_on_after(SETTLE_SECONDS, shield=True), suppress(MilesError):
                await self.wait()

    async def _or_none(self, saving: Awaitable[Result]) -> Result:
        """What the trainer answers; after an error none of what was being written is whole."""
        try:
            return await saving
        except MilesError:
            self._writing.clear()
            raise

    async def _whole(self, steps: Sequence[int]) -> None:
        for step in list(steps):
            self._writing.remove(step)
            if self._on_saved is not None:
                await self._on_saved(step, self._folder / f"step-{step}")
