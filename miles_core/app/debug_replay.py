"""Computes a dumped step again: rewards from its trajectories, advantages and losses from its model."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.app.dumps import CONFIG, dump_folder, read_dump
from miles_core.app.planes import build_scorer
from miles_core.app.supervise import supervised
from miles_core.app.trainer_client import optimizer_settings, trainer_process
from miles_core.app.wiring import wire
from miles_core.config.load import load_config
from miles_core.errors import ConfigError
from miles_core.train.dump import MODEL_FOLDER, read_train_dump

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.app.trainer_client import TrainerClient
    from miles_core.app.wiring import Wiring
    from miles_core.rollout.step import StepRollout
    from miles_core.train.batching import TrainStep

_ARRAYS = ("rewards", "proximal_logprobs", "reference_logprobs", "advantages", "returns")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity, recorded and computed again: how many values it has, how many differ, and the first that does."""

    name: str
    values: int
    differing: int
    recorded: str
    again: str


async def replay_step(run_dir: Path, step: int) -> list[Comparison]:
    """Compute step number ``step`` (counted from 1) of a run again.

    Raises:
        ConfigError: if there is no dump of that step.
    """
    folder = dump_folder(run_dir, step)
    config_file = folder / CONFIG
    rollout, train_step = read_dump(folder)
    try:
        recorded = read_train_dump(folder)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(f"the dump {folder} is not complete: {error}", remedy="Make it again.") from None
    wiring = wire(load_config(config_file), run_dir)
    comparisons = [await _rewards(wiring, rollout)]
    with tempfile.TemporaryDirectory(prefix="miles-replay-") as scratch:
        async with trainer_process(
            config_file, run_dir, start_timeout=wiring.config.train.start_timeout, log_dir=Path(scratch)
        ) as trainer:
            again = await supervised(
                [trainer.process], lambda: _train_again(wiring, trainer, folder, train_step, Path(scratch))
            )
    comparisons += [_compare(name, recorded[name], again[name]) for name in _ARRAYS if recorded[name] is not None]
    metrics, metrics_again = recorded["metrics"], again["metrics"]
    return comparisons + [_compare(name, metrics[name], metrics_again.get(name, np.nan)) for name in sorted(metrics)]


async def _rewards(wiring: Wiring, rollout: StepRollout) -> Comparison:
    """Rewards of all groups, dropped ones included."""
    scorer = build_scorer(wiring)
    before, again = [], []
    for group in rollout.groups:
        scored = await scorer.score(group.trajectories)
        before += [_value(trajectory.reward) for trajectory in group.trajectories]
        again += [_value(trajectory.reward) for trajectory in scored]
    return _compare("reward models", before, again)


async def _train_again(
    wiring: Wiring, trainer: TrainerClient, folder: Path, step: TrainStep, scratch: Path
) -> dict[str, Any]:
    settings = optimizer_settings(wiring.config.optimizer)
    await trainer.begin(settings, wiring.run_dir / "checkpoints" / "step-0", folder / MODEL_FOLDER)
    await trainer.train_step(step, scratch / "again")
    return read_train_dump(scratch / "again")


def _value(reward: Any) -> float:
    return float("nan") if reward is None or reward.value is None else float(reward.value)


def _compare(name: str, recorded: Sequence[float] | float, again: Sequence[float] | float) -> Comparison:
    before, now = np.atleast_1d(np.asarray(recorded)), np.atleast_1d(np.asarray(again))
    if before.shape != now.shape:
        return Comparison(name, before.size, before.size, f"{before.size} values", f"{now.size} values")
    differing = np.flatnonzero(~((before == now) | (np.isnan(before) & np.isnan(now))))
    first = int(differing[0]) if len(differing) else 0
    shown = (f"{values[first]:.9g}" if values.size else "-" for values in (before, now))
    return Comparison(name, before.size, len(differing), *shown)
