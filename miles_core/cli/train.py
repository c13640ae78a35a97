"""``miles train``: run a config file from start to end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter

from miles_core.app.checks import check_run
from miles_core.app.interrupt import on_interrupt
from miles_core.app.launch import Run
from miles_core.app.run_dir import create_run_dir, write_records
from miles_core.app.wiring import wire
from miles_core.config.load import load_config
from miles_core.telemetry.logs import logging_to
from miles_core.telemetry.progress import TrainingProgress

if TYPE_CHECKING:
    from miles_core.app.loop import Outcome


def train(
    config: Path,
    /,
    *,
    overrides: Annotated[tuple[str, ...], Parameter(name="--set", negative=(), show_default=False)] = (),
) -> int:
    """Train the policy that a config file describes, into a new folder below runs/.

    Parameters
    ----------
    config
        The TOML file, such as examples/quickstart/config.toml; `miles config reference` explains its keys.
    overrides
        KEY=VALUE replaces one value of the file, such as run.seed=1; may be given several times.
    """
    loaded = load_config(config, overrides)
    lock = check_run(wire(loaded, Path()))
    run_dir = create_run_dir(loaded)
    config_file = write_records(run_dir, loaded, lock)
    progress = TrainingProgress(loaded.config.run.steps)
    with progress, logging_to(run_dir / "logs" / "driver.log", progress.say):
        progress.say(f"run {run_dir}")
        run = Run(wire(load_config(config_file), run_dir), config_file, progress)
        outcome = anyio.run(_interruptible, run)
    if outcome is None:
        print(f"interrupted; what was finished is in {run_dir}")  # noqa: T201
        return 130
    print(_summary(outcome, run_dir))  # noqa: T201
    return 0


async def _interruptible(run: Run) -> Outcome | None:
    """Ctrl-C and SIGTERM cancel the run, so that every process is ended in order; ``None`` means interrupted."""
    outcome: Outcome | None = None
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        loop = asyncio.get_running_loop()
        with on_interrupt(lambda: loop.call_soon_threadsafe(tasks.cancel_scope.cancel)):
            try:
                outcome = await run.execute()
            except Exception as error:  # noqa: BLE001 - raised again below, outside the task group
                failure = error
    if failure is not None:
        raise failure
    return outcome


def _summary(outcome: Outcome, run_dir: Path) -> str:
    """What was learned, where the files are, what to try next."""
    first = "-" if outcome.first_reward is None else f"{outcome.first_reward:.2f}"
    last = "-" if outcome.last_reward is None else f"{outcome.last_reward:.2f}"
    ending = " and solved the task" if outcome.solved else ""
    return (
        f"learned: mean reward {first} -> {last} in {outcome.steps} steps{ending} "
        f"({outcome.version} weight updates)\n"
        f"files:   {run_dir} (metrics.jsonl, samples/, checkpoints/step-0 and step-{outcome.steps})\n"
        f"next:    read samples/, try `--set run.seed=1` or `--set rollout.max_staleness=1`, write a plugin (docs/)"
    )
