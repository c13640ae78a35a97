"""What a run writes down of each step: metrics, episodes, readable samples."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from miles_core.telemetry.episodes import write_episodes
from miles_core.telemetry.samples import dump_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from miles_core.config.schema import RunTable
    from miles_core.rollout.step import StepRollout
    from miles_core.telemetry.progress import TrainingProgress
    from miles_core.telemetry.tracking import Trackers
    from miles_core.types import Trajectory

logger = logging.getLogger("miles.recording")


class Recorder:
    """Nothing here stops a run: what cannot be written is told, and the run goes on."""

    def __init__(
        self,
        run: RunTable,
        run_dir: Path,
        trackers: Trackers,
        progress: TrainingProgress,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self._run = run
        self._run_dir = run_dir
        self._trackers = trackers
        self._progress = progress
        self._decode = decode
        self._last: StepRollout | None = None

    def phase(self, name: str) -> None:
        """Say what the run is doing."""
        self._progress.phase(name)

    def warn(self, text: str) -> None:
        """Tell what went wrong and did not stop the run."""
        logger.warning("%s", text)

    def step(self, step: int, rollout: StepRollout, metrics: Mapping[str, float], *, version: int) -> None:
        """Record step number ``step``, counted from 1; ``version`` was committed when it was trained."""
        self._last = rollout
        self._write_episodes(step, rollout, version)
        if rollout.step % self._run.samples_every == 0:
            self._write_samples(rollout)
        self._trackers.log(step, metrics)
        self._progress.step(step, metrics)

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record an evaluation after ``step`` steps: a row of its own, since the step's was written before."""
        self._trackers.log(step, metrics)

    def finish(self) -> None:
        """Write the samples of the last step."""
        if self._last is not None:
            self._write_samples(self._last)

    def _write_episodes(self, step: int, rollout: StepRollout, version: int) -> None:
        shown = _spread(rollout, self._run.episodes_per_step)
        if not shown:
            return
        kept = {trajectory.id for group in rollout.kept for trajectory in group.trajectories}
        try:
            write_episodes(self._run_dir / "episodes", step, shown, kept_ids=kept, version=version)
        except OSError as error:
            logger.warning("cannot write the episodes of step %d: %s", step, error)

    def _write_samples(self, rollout: StepRollout) -> None:
        shown = [trajectory for group in rollout.groups for trajectory in group.trajectories[:1]]
        path = self._run_dir / "samples" / f"step-{rollout.step}.txt"
        try:
            dump_samples(path, shown[: self._run.samples_per_dump], self._decode)
        except OSError as error:
            logger.warning("cannot write %s: %s", path, error)


def _spread(rollout: StepRollout, count: int) -> list[Trajectory]:
    """``count`` trajectories from as many groups as possible: the first of each group, then the second, and so on."""
    longest = max((len(group.trajectories) for group in rollout.groups), default=0)
    in_turn = [
        group.trajectories[member]
        for member in range(longest)
        for group in rollout.groups
        if member < len(group.trajectories)
    ]
    return in_turn[:count]
