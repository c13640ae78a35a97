"""The loop: generation and training are two concurrent tasks joined by one buffer with a staleness bound."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Protocol

import anyio

from miles_core.app.ending import Ending, Outcome, exhausted, limit_reached, outcome
from miles_core.errors import MilesError, RolloutError
from miles_core.lib.tasks import single_error
from miles_core.plugins.lifecycle.hooks import Hooks
from miles_core.telemetry.metrics import rollout_metrics
from miles_core.train.batching import TrainStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from miles_core.app.dumps import Dumper
    from miles_core.app.recording import Recorder
    from miles_core.app.run_state import RunState
    from miles_core.app.saving import Saver
    from miles_core.app.session_audit import SessionAudit
    from miles_core.config.schema import Config
    from miles_core.rollout.buffer import StepBuffer
    from miles_core.rollout.scheduler import RolloutScheduler
    from miles_core.rollout.step import StepRollout
    from miles_core.train.schedule import LearningRateSchedule
    from miles_core.weights.publish import PublishResult


class LoopTrainer(Protocol):
    """The trainer as the loop needs it."""

    async def train_step(self, step: TrainStep, dump_to: Path | None = None) -> Mapping[str, float]:
        """Train on one step."""


class LoopPublisher(Protocol):
    """The weight publisher as the loop needs it."""

    async def publish(self, version: int) -> PublishResult:
        """Commit the trainer's weights as ``version``."""

    def kept_up(self, version: int) -> AbstractAsyncContextManager[None]:
        """A time in which the trainer rests with the weights of ``version``; engines that come back get them."""

    async def metrics(self) -> Mapping[str, float]:
        """What a step tells of its engines."""


class LoopEvaluator(Protocol):
    """The evaluation as the loop needs it."""

    async def evaluate(self, step: int) -> Mapping[str, float]:
        """Score the policy that the engines serve now."""

    def has_evaluated(self, step: int) -> bool:
        """Whether there is an evaluation after ``step`` steps, perhaps from before a resume."""


class Placement(Protocol):
    """Who has the memory: engines, or the trainer while it trains."""

    def training(self) -> AbstractAsyncContextManager[None]:
        """The time of one training step."""


@dataclass(frozen=True, eq=False)
class LoopParts:
    """The planes that the loop joins."""

    scheduler: RolloutScheduler
    buffer: StepBuffer
    trainer: LoopTrainer
    publisher: LoopPublisher
    placement: Placement
    saver: Saver
    recorder: Recorder
    schedule: LearningRateSchedule
    evaluator: LoopEvaluator | None = None
    dumper: Dumper | None = None
    audit: SessionAudit | None = None
    hooks: Hooks = field(default_factory=Hooks)


class TrainingLoop:
    """Runs the steps of a config on wired parts, from ``state`` on."""

    def __init__(self, config: Config, parts: LoopParts, state: RunState) -> None:
        self._config = config
        self._parts = parts
        self._state = state
        self._stopping = False
        self._evaluated = -1
        self._seconds: dict[str, float] = {}
        self._started = 0.0
        self._at_rest = False

    def stop(self) -> None:
        """End the run after the step that is running, with a checkpoint."""
        self._stopping = True

    async def run(self) -> Outcome:
        """Run until the config's limit, the end of the data, :meth:`stop`, or until there is nothing left to learn.

        Raises:
            RolloutError: if there is nothing to learn from and the reward does not say "solved"; the last checkpoint
                is saved by then.
            MilesError: the first cause of any other failure; the other task is cancelled.
        """
        ending: Ending | None = None
        with single_error():
            try:
                async with anyio.create_task_group() as tasks:
                    await self._make_up()
                    tasks.start_soon(self._generate)
                    ending = await self._train()
                    tasks.cancel_scope.cancel()
            except Exception:
                await self._rescue()
                raise
            assert ending is not None
            await self._finish(ending)
        assert ending is not None
        if ending == "exhausted":
            raise exhausted(self._state.empty, self._config.run.solved_reward)
        return outcome(self._state, ending)

    async def _generate(self) -> None:
        parts = self._parts
        for step in count(parts.buffer.next_step):
            if self._config.run.steps is not None and step >= self._config.run.steps:
                return
            await parts.buffer.reserve(step)
            # by the time this step is trained, at most so many versions were committed
            version = self._state.version + step - self._state.step
            oldest = self._state.skipped.oldest(version, self._config.rollout.max_staleness)
            rollout = await parts.scheduler.step(step, oldest)
            if rollout is None:
                await parts.buffer.end()
                return
            await parts.buffer.put(rollout)
            await parts.hooks.observe("miles_rollout_finished", step=step, groups=rollout.kept, dropped=rollout.dropped)

    async def _train(self) -> Ending:
        state = self._state
        self._started = time.perf_counter()
        while (ending := limit_reached(self._config.run, state)) is None:
            if self._stopping:
                return "stopped"
            self._at_rest = True
            with self._phase("rollout"):
                async with self._parts.publisher.kept_up(state.version):
                    rollout = await self._parts.buffer.get(state.step, state.version)
            self._at_rest = False
            if rollout is None:
                return "data"
            await self._step(rollout)
        return ending

    async def _step(self, rollout: StepRollout) -> None:
        """Learn from one rollout, publish, record, save, evaluate; then the next step may be generated."""
        state, parts = self._state, self._parts
        version = state.version
        metrics = rollout_metrics(rollout.groups, rollout.kept, rollout.dropped, version=version, skipped=state.skipped)
        metrics |= rollout.counters
        if parts.audit is not None:
            metrics |= parts.audit.metrics()
        metrics |= await self._learn(rollout)
        metrics |= await parts.publisher.metrics()
        state.step += 1
        state.empty.add(rollout)
        if "rollout/reward" in metrics:
            state.add_reward(metrics["rollout/reward"])
        await parts.saver.check()
        metrics |= self._timing(rollout.generated_tokens)
        parts.recorder.step(state.step, rollout, metrics, version=version)
        await parts.hooks.observe("miles_step_finished", step=state.step, metrics=metrics)
        every = self._config.checkpoint.every
        if every and state.step % every == 0:
            await self._save()
        if self._config.eval is not None and self._config.eval.every and state.step % self._config.eval.every == 0:
            await self._evaluate()
        await parts.buffer.trained(rollout.step)

    def _timing(self, tokens: int) -> dict[str, float]:
        """Seconds since the step before was recorded, by phase; its saving and evaluation are among them."""
        now = time.perf_counter()
        seconds, self._started = now - self._started, now
        self._state.seconds += seconds
        phases = {f"perf/phase/{name}": value for name, value in self._seconds.items()}
        self._seconds = {}
        return {"perf/step_seconds": seconds, "perf/tokens_per_second": tokens / seconds, **phases}

    async def _save(self) -> None:
        """Save now: generation is not ahead of this moment in a synchronous run, and what is in flight is noted."""
        with self._phase("save"):
            await self._parts.saver.save(self._parts.saver.capture(self._state))

    async def _learn(self, rollout: StepRollout) -> dict[str, float]:
        """One optimizer pass and one weight update; nothing where no group is left."""
        state, parts = self._state, self._parts
        if not rollout.kept:
            return {"weights/version": float(state.version)}
        rate = parts.schedule.at(rollout.step)
        step = TrainStep(rollout.step, rollout.kept, rollout.generated_tokens, rate)
        async with parts.placement.training():
            with self._phase("train"):
                metrics = dict(await parts.trainer.train_step(step, self._dump(rollout, step)))
        with self._phase("sync"):
            result = await parts.publisher.publish(state.version + 1)
        state.version = version = result.manifest.version
        await parts.hooks.observe("miles_weights_published", version=version, manifest=result.manifest)
        metrics["train/learning_rate"] = rate
        metrics["weights/sync_seconds"] = sum(result.seconds.values())
        metrics |= {f"weights/seconds/{part}": seconds for part, seconds in result.seconds.items()}
        metrics["weights/left_behind"] = float(len(result.lost))
        metrics["weights/bytes"] = float(result.manifest.nbytes)
        metrics["weights/version"] = float(state.version)
        return metrics

    def _dump(self, rollout: StepRollout, step: TrainStep) -> Path | None:
        dumper = self._parts.dumper
        folder = None if dumper is None else dumper.folder(self._state.step + 1)
        if dumper is not None and folder is not None:
            dumper.write(folder, rollout, step)
        return folder

    async def _rescue(self) -> None:
        """After a failure that came while the trainer was at rest, such as a bad row: what was learned is saved."""
        if self._at_rest and self._parts.saver.last_step != self._state.step:
            with suppress(MilesError):
                await self._save()
                await self._parts.saver.wait()

    async def _make_up(self) -> None:
        """The evaluation that a run was killed before, after its checkpoint."""
        table, evaluator, step = self._config.eval, self._parts.evaluator, self._state.step
        due = table is not None and table.every and step and step % table.every == 0
        if due and evaluator is not None and not evaluator.has_evaluated(step):
            await self._evaluate()

    async def _evaluate(self) -> None:
        """Evaluate; no weights change meanwhile, since this task is the one that publishes."""
        step, evaluator = self._state.step, self._parts.evaluator
        if evaluator is None or step == self._evaluated:
            return
        self._evaluated = step
        with self._phase("eval"):
            try:
                async with self._parts.publisher.kept_up(self._state.version):
                    metrics = await evaluator.evaluate(step)
            except RolloutError as error:  # such as a grader that is out of service: no reason to stop learning
                self._parts.recorder.warn(f"the evaluation after step {step} failed: {error}")
                return
        self._parts.recorder.evaluation(step, metrics)

    async def _finish(self, ending: Ending) -> None:
        """The last checkpoint and the last evaluation, where the steps have not made them."""
        if self._parts.saver.last_step != self._state.step:
            await self._save()
        if ending != "stopped":
            await self._evaluate()
        with self._phase("save"):
            await self._parts.saver.wait()
        self._parts.recorder.finish()

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self._parts.recorder.phase(name)
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started
