"""A whole training run: start the processes, warm up, loop, and leave nothing behind."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
from anyio import to_thread

from miles_core.app.loop import Outcome, TrainingLoop
from miles_core.app.planes import build_scheduler, observation_roles
from miles_core.app.processes import Child, child
from miles_core.app.supervise import supervised
from miles_core.app.trainer_client import TrainerClient, trainer_process
from miles_core.app.warmup import warm_up
from miles_core.engine.client import HttpEngineClient
from miles_core.errors import EngineError, RouterError
from miles_core.kinds.train_backends import OptimizerSettings
from miles_core.rollout.buffer import StepBuffer
from miles_core.session.tito import check_append_only
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.telemetry.samples import dump_samples
from miles_core.weights.publish import Publisher

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from miles_core.app.wiring import Wiring
    from miles_core.kinds.data_sources import DataSource
    from miles_core.rollout.scheduler import StepRollout
    from miles_core.telemetry.progress import TrainingProgress


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a checked config in its folder; ``config_file`` is the resolved one."""

    wiring: Wiring
    config_file: Path
    progress: TrainingProgress

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.wiring.run_dir

    async def execute(self) -> Outcome:
        """Train; returns how it ended.

        Raises:
            MilesError: the first cause of a failure; every process of the run is gone by then.
        """
        config = self.wiring.config
        source: DataSource = self.wiring.build("data_sources", config.data)
        self.progress.phase("starting trainer")
        async with trainer_process(
            self.config_file, self.path, start_timeout=config.train.start_timeout, log_dir=self.path / "logs"
        ) as trainer:
            tokenizer = await to_thread.run_sync(ChatTokenizer.load, self.wiring.model.path)
            if config.rollout.max_turns > 1:
                check_append_only(tokenizer, sorted(observation_roles(self.wiring)))
            await supervised([trainer.process], lambda: self._prepare(trainer, tokenizer))
            return await self._with_engines(trainer, tokenizer, source)

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.path / "checkpoints" / f"step-{step}"

    async def _prepare(self, trainer: TrainerClient, tokenizer: ChatTokenizer) -> None:
        """The warm-up, then checkpoint 0: the model that reinforcement starts from."""
        config = self.wiring.config
        if config.warmup is not None:
            table = config.warmup
            self.progress.say(f"warm-up: {table.steps} supervised steps on {table.data} ({table.purpose})")
            loss = await warm_up(
                table,
                self.wiring.loaded.resolve(table.data),
                trainer,
                tokenizer,
                seed=config.run.seed,
                on_step=lambda step, _: self.progress.phase(f"warm-up {step}/{table.steps}"),
            )
            self.progress.say(f"warm-up: done, {loss:.3f} nats per token; checkpoints/step-0 is the model after it")
        self.progress.phase("saving step-0")
        await trainer.save(self.checkpoint(0))
        optimizer = config.optimizer
        await trainer.begin(
            OptimizerSettings(
                optimizer.learning_rate,
                optimizer.betas,
                optimizer.eps,
                optimizer.weight_decay,
                optimizer.max_grad_norm,
            )
        )

    async def _with_engines(self, trainer: TrainerClient, tokenizer: ChatTokenizer, source: DataSource) -> Outcome:
        async with AsyncExitStack() as stack:
            self.progress.phase("starting engines")
            engines = [await stack.enter_async_context(self._engine(i)) for i in range(self.wiring.config.engine.count)]
            router = await stack.enter_async_context(self._router(engines))
            http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
            loop = self._loop(trainer, [engine.ready["url"] for engine in engines], router, http, tokenizer, source)
            try:
                return await supervised([trainer.process, router, *engines], loop.run)
            finally:
                loop.close()

    def _engine(self, index: int) -> AbstractAsyncContextManager[Child]:
        table = self.wiring.config.engine
        engine = self.wiring.build("engines", table)
        command = engine.command(str(self.checkpoint(0)), index=index, config_path=str(self.config_file))
        return child(
            f"engine-{index}",
            command.argv,
            environment=command.environment,
            log=self.path / "logs" / f"engine-{index}.log",
            error=EngineError,
            start_timeout=table.start_timeout,
        )

    def _router(self, engines: Sequence[Child]) -> AbstractAsyncContextManager[Child]:
        workers = [option for engine in engines for option in ("--worker", engine.ready["url"])]
        return child(
            "router",
            [sys.executable, "-m", "miles_core.cli", "serve", "router", "--config", str(self.config_file), *workers],
            log=self.path / "logs" / "router.log",
            error=RouterError,
            start_timeout=self.wiring.config.engine.start_timeout,
        )

    def _loop(
        self,
        trainer: TrainerClient,
        engine_urls: Sequence[str],
        router: Child,
        http: aiohttp.ClientSession,
        tokenizer: ChatTokenizer,
        source: DataSource,
    ) -> TrainingLoop:
        config, model = self.wiring.config, self.wiring.model
        client = HttpEngineClient(
            router.ready["url"],
            http,
            vocab_size=model.vocab_size,
            context_length=model.context_length,
            routing=model.routing,
        )
        publisher = Publisher(
            engine_urls,
            trainer,
            http,
            bucket_bytes=config.weights.bucket_bytes,
            timeout=config.weights.timeout,
            pause_mode=config.engine.pause_mode,
        )

        def dump(rollout: StepRollout) -> None:
            shown = [trajectory for group in rollout.groups for trajectory in group.trajectories[:1]]
            path = self.path / "samples" / f"step-{rollout.step}.txt"
            dump_samples(path, shown[: config.run.samples_per_dump], tokenizer.decode)

        return TrainingLoop(
            config,
            build_scheduler(self.wiring, source, client, tokenizer),
            StepBuffer(config.rollout.max_staleness),
            trainer,
            publisher,
            trackers=[self.wiring.build("trackers", table) for table in config.trackers],
            progress=self.progress,
            save=lambda step: trainer.save(self.checkpoint(step)),
            dump=dump,
        )
