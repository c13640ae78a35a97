"""The loop: generation and training are two concurrent tasks joined by one buffer with a staleness bound."""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio

from miles_core.app.errors import single_error
from miles_core.errors import CheckpointError, MilesError, PluginError, RolloutError
from miles_core.telemetry.metrics import rollout_metrics
from miles_core.train.batching import TrainStep
from miles_core.train.schedule import LearningRateSchedule

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from miles_core.config.schema import Config
    from miles_core.kinds.trackers import Tracker
    from miles_core.rollout.buffer import StepBuffer
    from miles_core.rollout.scheduler import RolloutScheduler, StepRollout
    from miles_core.telemetry.progress import TrainingProgress
    from miles_core.weights.publish import PublishResult


class LoopTrainer(Protocol):
    """The trainer as the loop needs it."""

    async def train_step(self, step: TrainStep) -> Mapping[str, float]:
        """Train on one step."""


class LoopPublisher(Protocol):
    """The weight publisher as the loop needs it."""

    async def publish(self, version: int) -> PublishResult:
        """Commit the trainer's weights as ``version``."""


logger = logging.getLogger("miles.loop")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: steps done, the first and the last steps' rewards, and whether the task was solved early."""

    steps: int
    version: int
    first_reward: float | None
    last_reward: float | None
    solved: bool


class TrainingLoop:
    """Runs the steps of a config on wired parts."""

    def __init__(
        self,
        config: Config,
        scheduler: RolloutScheduler,
        buffer: StepBuffer,
        trainer: LoopTrainer,
        publisher: LoopPublisher,
        *,
        trackers: Sequence[Tracker],
        progress: TrainingProgress,
        save: Callable[[int], Awaitable[None]],
        dump: Callable[[StepRollout], None],
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._buffer = buffer
        self._trainer = trainer
        self._publisher = publisher
        self._trackers = trackers
        self._progress = progress
        self._save = save
        self._dump = dump
        optimizer = config.optimizer
        self._schedule = LearningRateSchedule(
            optimizer.learning_rate,
            config.run.steps,
            optimizer.warmup_steps,
            optimizer.final_lr_fraction if optimizer.decay == "linear" else 1.0,
        )
        self._version = 0
        self._rewards: list[float] = []
        self._empty: list[StepRollout] = []
        self._seconds: dict[str, float] = {}

    async def run(self) -> Outcome:
        """Run until the last step, or until there is nothing left to learn.

        Raises:
            MilesError: the first cause; the other task is cancelled.
        """
        outcome: Outcome | None = None
        with single_error():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._generate)
                outcome = await self._train()
                tasks.cancel_scope.cancel()
        assert outcome is not None
        return outcome

    def close(self) -> None:
        """Close the trackers, whatever ended the run."""
        for tracker in self._trackers:
            try:
                tracker.close()
            except Exception as error:  # noqa: BLE001 - the run is over; what ended it is told, not this
                logger.warning("tracker %s: close() raised %s: %s", _name(tracker), type(error).__name__, error)

    async def _generate(self) -> None:
        for step in range(self._config.run.steps):
            await self._buffer.reserve(step)
            await self._buffer.put(await self._scheduler.step(step))

    async def _train(self) -> Outcome:
        steps = self._config.run.steps
        for step in range(steps):
            started = time.perf_counter()
            self._seconds = {}
            with self._phase("rollout"):
                rollout = await self._buffer.get(step, self._version)
            metrics = rollout_metrics(rollout.groups, rollout.kept, rollout.dropped, version=self._version)
            metrics |= await self._learn(rollout)
            nothing_left = self._nothing_left(rollout)
            await self._finish_step(step, rollout, metrics, started, last=nothing_left or step + 1 == steps)
            if nothing_left:
                self._require_solved()
                return self._outcome(step + 1, solved=True)
        return self._outcome(steps, solved=False)

    async def _learn(self, rollout: StepRollout) -> dict[str, float]:
        """One optimizer pass and one weight update; nothing where no group is left."""
        if not rollout.kept:
            return {"weights/version": float(self._version)}
        rate = self._schedule.at(rollout.step)
        step = TrainStep(rollout.step, rollout.kept, rollout.generated_tokens, rate)
        with self._phase("train"):
            metrics = dict(await self._trainer.train_step(step))
        with self._phase("sync"):
            result = await self._publisher.publish(self._version + 1)
        self._version = result.manifest.version
        metrics["train/learning_rate"] = rate
        metrics["weights/sync_seconds"] = result.seconds
        metrics["weights/bytes"] = float(result.manifest.nbytes)
        metrics["weights/version"] = float(self._version)
        return metrics

    async def _finish_step(
        self, step: int, rollout: StepRollout, metrics: dict[str, float], started: float, *, last: bool
    ) -> None:
        await self._buffer.trained(step)
        every = self._config.checkpoint.every
        if last or (every and (step + 1) % every == 0):
            with self._phase("save"):
                await self._save(step + 1)
        seconds = time.perf_counter() - started
        metrics["perf/step_seconds"] = seconds
        metrics["perf/tokens_per_second"] = rollout.generated_tokens / seconds
        metrics |= {f"perf/phase/{name}": value for name, value in self._seconds.items()}
        if "rollout/reward" in metrics:
            self._rewards.append(metrics["rollout/reward"])
        self._record(step, rollout, metrics, last=last)
        self._progress.step(step + 1, metrics)

    def _record(self, step: int, rollout: StepRollout, metrics: Mapping[str, float], *, last: bool) -> None:
        try:
            if step % self._config.run.samples_every == 0 or last:
                self._dump(rollout)
            for tracker in self._trackers:
                _log(tracker, step + 1, metrics)
        except OSError as error:
            raise CheckpointError(
                f"cannot write the metrics and samples of step {step + 1}: {error}",
                remedy="Free space on that disk, or set run.dir to another; checkpoints that were saved are whole.",
            ) from error

    def _nothing_left(self, rollout: StepRollout) -> bool:
        """Count empty steps; enough of them in a row end the run."""
        if rollout.kept:
            self._empty.clear()
        else:
            self._empty.append(rollout)
        return len(self._empty) >= self._config.run.max_empty_steps

    def _require_solved(self) -> None:
        """Nothing is left to learn from: well, if the reward says so.

        Raises:
            RolloutError: with what was dropped and why.
        """
        rewards = [reward for step in self._empty for reward in step.rewards]
        mean = sum(rewards) / len(rewards) if rewards else None
        causes = {reason: cause for step in self._empty for reason, cause in step.causes.items()}
        clean = not causes and not any(step.dropped["stale"] for step in self._empty)
        if clean and mean is not None and mean >= self._config.run.solved_reward - 1e-6:
            return
        reasons = sum((step.dropped for step in self._empty), start=Counter[str]())
        counted = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        got = "no reward at all" if mean is None else f"a mean reward of {mean:.3f}"
        raise RolloutError(
            f"{len(self._empty)} steps in a row had no group to train on ({counted}), with {got} where "
            f"run.solved_reward is {self._config.run.solved_reward:g}; the last checkpoint is saved"
            + "".join(f"\n  {reason}: {cause}" for reason, cause in causes.items()),
            remedy="Look at samples/; make the task easier or the groups larger, loosen the filters, or set "
            "run.solved_reward to what counts as solved.",
        )

    def _outcome(self, steps: int, *, solved: bool) -> Outcome:
        rewards = self._rewards
        tail = rewards[-min(5, len(rewards)) :]
        last = sum(tail) / len(tail) if tail else None
        return Outcome(steps, self._version, rewards[0] if rewards else None, last, solved)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self._progress.phase(name)
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started


def _log(tracker: Tracker, step: int, metrics: Mapping[str, float]) -> None:
    try:
        tracker.log(step, metrics)
    except (MilesError, OSError):
        raise
    except Exception as error:
        raise PluginError(f"tracker {_name(tracker)}: log() raised {type(error).__name__}: {error}") from error


def _name(tracker: Tracker) -> str:
    return f"{type(tracker).__module__}:{type(tracker).__qualname__}"
