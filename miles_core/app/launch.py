"""A whole training run: start the processes, warm up or resume, loop, and leave nothing behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anyio import CancelScope, to_thread

from miles_core.app.colocation import Colocated, Disaggregated
from miles_core.app.evaluator import Evaluator
from miles_core.app.functions import session_renderer
from miles_core.app.loop import LoopParts, TrainingLoop
from miles_core.app.on_policy import check_run_on_policy
from miles_core.app.planes import (
    build_evaluation,
    build_filters,
    build_runner,
    build_tasks,
    fill_settings,
    load_tokenizer,
)
from miles_core.app.recording import Recorder
from miles_core.app.run_hooks import RunHooks
from miles_core.app.run_state import RunState
from miles_core.app.saving import Saver, run_file
from miles_core.app.serving import serving
from miles_core.app.session_audit import SessionAudit
from miles_core.app.session_server import session_server
from miles_core.app.supervise import supervised
from miles_core.app.tracking import open_trackers
from miles_core.app.trainer_client import TrainerClient, optimizer_settings, trainer_process
from miles_core.app.updates import FleetUpdates, fleet_updates
from miles_core.app.version_mark import VersionMark
from miles_core.app.warmup import warm_up
from miles_core.kinds.hooks import RunInfo
from miles_core.rollout.buffer import StepBuffer
from miles_core.rollout.scheduler import RolloutScheduler
from miles_core.train.schedule import LearningRateSchedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from miles_core.app.dumps import Dumper
    from miles_core.app.ending import Outcome
    from miles_core.app.resume import Resumed
    from miles_core.app.serving import Serving
    from miles_core.app.session_server import SessionServer
    from miles_core.app.wiring import Wiring
    from miles_core.config.schema import Config
    from miles_core.session.tokenizer import ChatTokenizer
    from miles_core.telemetry.progress import TrainingProgress
    from miles_core.telemetry.tracking import Trackers
    from miles_core.types import Task


@dataclass(eq=False)
class Run:
    """One run of a checked config in its folder; ``config_file`` is the resolved one, ``lock`` its plugins.

    ``on_start`` is called when everything has started and the first step begins. ``stuck`` names, after the run,
    trackers that did not come to an end.
    """

    wiring: Wiring
    config_file: Path
    progress: TrainingProgress
    lock: Sequence[Mapping[str, Any]] = ()
    resumed: Resumed | None = None
    dumper: Dumper | None = None
    on_start: Callable[[], None] = lambda: None
    stuck: Sequence[str] = field(default=(), init=False)
    _loop: TrainingLoop | None = field(default=None, init=False)
    _sessions: SessionServer | None = field(default=None, init=False)

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.wiring.run_dir

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.path / "checkpoints" / f"step-{step}"

    def stop(self) -> bool:
        """End after the step that is running, with a checkpoint; false where no step runs yet."""
        if self._loop is not None:
            self._loop.stop()
        return self._loop is not None

    async def execute(self) -> Outcome:
        """Train; returns how it ended.

        Raises:
            MilesError: the first cause of a failure; every process of the run is gone by then.
        """
        state = RunState() if self.resumed is None else self.resumed.state
        state.go_past(VersionMark(self.path).read())
        hooks = RunHooks(self.wiring.hooks, RunInfo(self.path.name, self.path, state.step))
        async with hooks.lifetime():
            return await self._with_trackers(state, hooks)

    async def _with_trackers(self, state: RunState, hooks: RunHooks) -> Outcome:
        self.progress.phase("starting trackers")
        resume_step = None if self.resumed is None else state.step
        trackers = await to_thread.run_sync(open_trackers, self.wiring, self.progress.say, resume_step)
        try:
            return await self._with_sessions(state, trackers, hooks)
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(trackers.close)
            self.stuck = trackers.stuck

    async def _with_sessions(self, state: RunState, trackers: Trackers, hooks: RunHooks) -> Outcome:
        async with session_server(self.wiring) as sessions:
            self._sessions = sessions
            return await self._with_trainer(state, trackers, hooks)

    async def _with_trainer(self, state: RunState, trackers: Trackers, hooks: RunHooks) -> Outcome:
        config = self.wiring.config
        self.progress.phase("starting trainer")
        async with trainer_process(
            self.config_file, self.path, start_timeout=config.train.start_timeout, log_dir=self.path / "logs"
        ) as trainer:
            tokenizer = await to_thread.run_sync(load_tokenizer, self.wiring)
            await supervised([trainer.process], lambda: self._prepare(trainer, tokenizer))
            self.progress.phase("starting engines")
            start = self.checkpoint(0) if self.resumed is None else self.resumed.path
            async with serving(self.wiring, self.config_file, start, self.progress, version=state.version) as served:
                recorder = Recorder(config.run, self.path, trackers, self.progress, tokenizer.decode)
                updates = fleet_updates(self.wiring, served, trainer)
                parts = self._parts(trainer, served, updates, tokenizer, state, recorder)
                return await self._train(trainer, served, updates, parts, state, hooks)

    async def _train(
        self,
        trainer: TrainerClient,
        served: Serving,
        updates: FleetUpdates,
        parts: LoopParts,
        state: RunState,
        hooks: RunHooks,
    ) -> Outcome:
        loop = TrainingLoop(self.wiring.config, parts, state)

        async def work() -> Outcome:
            self.progress.phase("sync")
            await updates.catch_up(state.version)
            await self._check_on_policy(trainer, served, parts.recorder, state)
            self.on_start()
            await hooks.started()
            self._loop = loop
            return await loop.run()

        try:
            return await supervised([trainer.process, served.router, served.fleet], work)
        finally:
            self._loop = None
            await parts.saver.settle()

    async def _check_on_policy(
        self, trainer: TrainerClient, served: Serving, recorder: Recorder, state: RunState
    ) -> None:
        """Where the config asks for it, compare what engines sample from with what the trainer computes."""
        engines, say = served.fleet.serving_urls, self.progress.say
        found = await check_run_on_policy(self.wiring, engines, served.http, trainer, say)
        if found:
            recorder.evaluation(state.step, found)

    async def _prepare(self, trainer: TrainerClient, tokenizer: ChatTokenizer) -> None:
        """Warm up and save checkpoint 0, the model that reinforcement starts from; or load a checkpoint."""
        optimizer = optimizer_settings(self.wiring.config.optimizer)
        if self.resumed is not None:
            self.progress.phase(f"loading {self.resumed.path.name}")
            await trainer.begin(optimizer, self.checkpoint(0), self.resumed.path)
            return
        await self._warm_up(trainer, tokenizer)
        self.progress.phase("saving step-0")
        await trainer.begin(optimizer)
        await trainer.save(self.checkpoint(0), run_file(RunState(), self._facts()), keep=0)
        await trainer.wait_save()
        await self._checkpoint_saved(0, self.checkpoint(0))

    async def _checkpoint_saved(self, step: int, path: Path) -> None:
        await self.wiring.hooks.observe("miles_checkpoint_saved", step=step, path=str(path))

    async def _warm_up(self, trainer: TrainerClient, tokenizer: ChatTokenizer) -> None:
        table = self.wiring.config.warmup
        if table is None:
            return
        self.progress.say(f"warm-up: {table.steps} supervised steps on {table.data} ({table.purpose})")
        loss = await warm_up(
            table,
            self.wiring.loaded.resolve(table.data),
            trainer,
            tokenizer,
            session_renderer(self.wiring.config.session, tokenizer),
            seed=self.wiring.config.run.seed,
            on_step=lambda step, _: self.progress.phase(f"warm-up {step}/{table.steps}"),
        )
        self.progress.say(f"warm-up: done, {loss:.3f} nats per token; checkpoints/step-0 is the model after it")

    def _parts(
        self,
        trainer: TrainerClient,
        served: Serving,
        updates: FleetUpdates,
        tokenizer: ChatTokenizer,
        state: RunState,
        recorder: Recorder,
    ) -> LoopParts:
        wiring, config = self.wiring, self.wiring.config
        reached: dict[str, Any] = {"router_url": served.router.ready["url"], "endpoints": self._sessions}
        audit = SessionAudit(config.session.audit, tokenizer)
        filters = build_filters(wiring, tokenizer)
        tasks = build_tasks(wiring, config.data, tokenizer, epochs=config.run.epochs)
        scheduler = RolloutScheduler(
            tasks,
            build_runner(wiring, served.client, tokenizer, **reached, audit=audit),
            filters,
            fill_settings(wiring),
            self._rollout_started,
            wiring.calls.take_metrics,
        )
        buffer = StepBuffer(
            config.rollout.max_staleness,
            filters,
            ahead=config.rollout.max_steps_ahead,
            trained=state.step,
            skipped=state.skipped,
        )
        if self.resumed is not None and self.resumed.rollout is not None:
            scheduler.restore(self.resumed.rollout["scheduler"])
            buffer.restore(self.resumed.rollout["buffer"])
        evaluator = None
        if config.eval is not None:
            evaluation = build_evaluation(wiring, served.client, tokenizer, **reached)
            evaluator = Evaluator(evaluation, wiring.hooks, self.path / "evals", self.progress)
        return LoopParts(
            scheduler=scheduler,
            buffer=buffer,
            trainer=trainer,
            publisher=updates,
            placement=self._placement(served),
            saver=Saver(
                trainer,
                self.path / "checkpoints",
                config.checkpoint,
                scheduler,
                buffer,
                facts=self._facts(),
                last_step=state.step,
                on_saved=self._checkpoint_saved,
            ),
            recorder=recorder,
            schedule=learning_rate(config),
            evaluator=evaluator,
            audit=audit,
            dumper=self.dumper,
            hooks=wiring.hooks,
        )

    def _placement(self, served: Serving) -> Colocated | Disaggregated:
        config = self.wiring.config
        if config.run.placement != "colocated":
            return Disaggregated()
        weights = config.weights
        return Colocated(served.fleet, served.http, timeout=weights.timeout, patience=weights.patience)

    async def _rollout_started(self, step: int, tasks: Sequence[Task]) -> None:
        await self.wiring.hooks.observe("miles_rollout_started", step=step, tasks=tasks)

    def _facts(self) -> dict[str, Any]:
        return {"config": self.wiring.config.model_dump(mode="json"), "plugins": [dict(row) for row in self.lock]}


def learning_rate(config: Config) -> LearningRateSchedule:
    """The schedule of a config."""
    table, run = config.optimizer, config.run
    return LearningRateSchedule(
        table.learning_rate,
        decay=table.decay,
        decay_steps=table.decay_steps or run.steps,
        warmup_steps=table.warmup_steps,
        final_fraction=table.final_lr_fraction,
    )
