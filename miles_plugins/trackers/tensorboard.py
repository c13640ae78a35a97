"""Metrics for TensorBoard."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from miles_plugins.trackers.optional import require
from miles_plugins.trackers.run_folder import run_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.api import PluginContext


class TensorBoardConfig(BaseModel):
    """Options of ``[[trackers]] use = "tensorboard"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str = Field("tensorboard", min_length=1, description="where event files go; relative to the run's folder")


class TensorBoard:
    """Writes scalars into event files, with TensorBoard's own writer and without torch; NaN and infinity as they are.

    A resumed run begins a new file that tells TensorBoard to forget the steps that come again.
    """

    Config = TensorBoardConfig

    def __init__(self, config: TensorBoardConfig, context: PluginContext) -> None:
        folder = run_folder(context, "tensorboard") / config.folder
        writer = require("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._events = require("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._summaries = require("tensorboard.compat.proto.summary_pb2", "tensorboard")
        self._writer = writer.EventFileWriter(str(folder))
        resume_step: int | None = context.services.get("resume_step")
        if resume_step is not None:
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._add(resume_step + 1, session_log=start)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step to disk."""
        values = [self._summaries.Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(step, summary=self._summaries.Summary(value=values))

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, **content))
        self._writer.flush()
