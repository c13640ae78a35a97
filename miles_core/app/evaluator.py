"""Evaluation as part of a run, or alone: progress, files and the hook around it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from miles_core.telemetry.episodes import write_episodes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from miles_core.plugins.lifecycle.hooks import Hooks
    from miles_core.rollout.evaluation import Evaluation
    from miles_core.telemetry.progress import TrainingProgress
    from miles_core.types import Group


class Evaluator:
    """Writes ``step-N.json`` with the metrics into its folder, and the trajectories beside it."""

    def __init__(self, evaluation: Evaluation, hooks: Hooks, folder: Path, progress: TrainingProgress) -> None:
        self._evaluation = evaluation
        self._hooks = hooks
        self._folder = folder
        self._progress = progress

    def has_evaluated(self, step: int) -> bool:
        """Whether the file of that step is there."""
        return (self._folder / f"step-{step}.json").is_file()

    async def evaluate(self, step: int) -> dict[str, float]:
        """Score the policy that the engines serve now; returns metrics.

        Raises:
            RolloutError: if nothing can be scored.
        """
        result = await self._evaluation.run(step, lambda done: self._progress.phase(f"eval {done} tasks"))
        trajectories = [trajectory for group in result.groups for trajectory in group.trajectories]
        self._folder.mkdir(exist_ok=True)
        write_episodes(self._folder, step, trajectories, kept_ids=(), version=_version(result.groups))
        (self._folder / f"step-{step}.json").write_text(json.dumps(result.metrics, indent=1) + "\n", "utf-8")
        await self._hooks.observe("miles_eval_finished", step=step, results=result.metrics)
        self._progress.say(f"eval after step {step}: {summary(result.metrics)}")
        return result.metrics


def summary(metrics: dict[str, float]) -> str:
    """One line for a person."""
    passes = ", ".join(
        f"{name.removeprefix('eval/')} {value:.3f}" for name, value in metrics.items() if "pass@" in name
    )
    return (
        f"reward {metrics['eval/reward']:.3f} "
        f"(95 % {metrics['eval/reward_low']:.3f} to {metrics['eval/reward_high']:.3f}), {passes}, "
        f"{metrics['eval/tasks']:.0f} tasks"
    )


def _version(groups: Sequence[Group]) -> int:
    versions = [group.newest_version for group in groups]
    return max((version for version in versions if version is not None), default=0)
