"""``miles train``: run a config file from start to end, or go on with a run."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter

from miles_core.app.checks import check_run
from miles_core.app.dumps import Dumper
from miles_core.app.ending import limit_reached
from miles_core.app.interrupt import on_interrupt
from miles_core.app.launch import Run
from miles_core.app.resume import clear_later, differences, load_resumed
from miles_core.app.run_dir import create_run_dir, records_replaced, write_records
from miles_core.app.run_lock import run_lock
from miles_core.app.run_state import EmptySteps
from miles_core.app.wiring import wire
from miles_core.config.load import load_config
from miles_core.errors import ConfigError, cause_of
from miles_core.telemetry.ending import Ending, write_ending
from miles_core.telemetry.find import find_run
from miles_core.telemetry.logs import logging_to
from miles_core.telemetry.progress import TrainingProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from miles_core.app.ending import Outcome
    from miles_core.app.run_state import RunState
    from miles_core.config.load import LoadedConfig

_ENDINGS = {
    "steps": "",
    "hours": ", the hours of run.max_hours",
    "data": ", all that the data holds",
    "solved": " and solved the task",
}


def train(
    config: Path | None = None,
    /,
    *,
    overrides: Annotated[tuple[str, ...], Parameter(name="--set", negative=(), show_default=False)] = (),
    resume: str | None = None,
    dump: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
) -> int:
    """Train the policy that a config file describes, into a new folder below runs/; or go on with a run.

    Ctrl-C ends a run after the step that is running, with a checkpoint; a second one ends it now, a third at once.

    Parameters
    ----------
    config
        The TOML file, such as examples/quickstart/config.toml; `miles config reference` explains its keys. With
        --resume it is the run's own if not given.
    overrides
        KEY=VALUE replaces one value of the file, such as run.seed=1; may be given several times.
    resume
        A run to go on with from its newest checkpoint: its folder, its id below runs/, or `latest`.
    dump
        A step, as metrics.jsonl counts it, or `all`: keep everything of it for `miles debug replay`; may be given
        several times.
    """
    steps = _steps(dump)
    if resume is None:
        if config is None:
            raise ConfigError("no config file is given", remedy="Name one, or a run: miles train --resume latest.")
        return _start(config, overrides, steps)
    return _resume(resume, config, overrides, steps)


def _start(config: Path, overrides: Sequence[str], dump: Sequence[int] | None) -> int:
    loaded = load_config(config, overrides)
    wiring = wire(loaded, Path())
    lock = check_run(wiring)
    run_dir = create_run_dir(loaded)
    with run_lock(run_dir):
        config_file = write_records(run_dir, loaded, lock)
        progress = TrainingProgress(loaded.config.run.steps)
        run = Run(wiring.rewired(config_file, run_dir), config_file, progress, lock, dumper=Dumper(run_dir, dump))
        return _execute(run, [f"run {run_dir}"])


def _resume(reference: str, config: Path | None, overrides: Sequence[str], dump: Sequence[int] | None) -> int:
    runs = next((value.partition("=")[2] for value in reversed(overrides) if value.startswith("run.dir=")), "runs")
    run_dir = find_run(reference, Path(runs).expanduser())
    loaded = load_config(config or run_dir / "config.toml", overrides)
    wiring = wire(loaded, run_dir)
    lock = check_run(wiring)
    with run_lock(run_dir):
        resumed, saved = load_resumed(run_dir)
        lines = [f"changed since: {line}" for line in differences(saved.run, loaded.config, lock)]
        lines += _begin_anew(resumed.state, loaded, run_dir)
        if resumed.rollout is not None:  # other data is refused here, before anything is changed or started
            wiring.source(loaded.config.data).restore(resumed.rollout["scheduler"]["tasks"]["source"])
        warnings = [*saved.warnings, *clear_later(run_dir, saved.step)]
        with records_replaced(run_dir, loaded, lock) as (config_file, keep):
            progress = TrainingProgress(loaded.config.run.steps)
            wiring = wiring.rewired(config_file, run_dir)
            run = Run(wiring, config_file, progress, lock, resumed, Dumper(run_dir, dump), on_start=keep)
            first = f"run {run_dir}, resumed after step {resumed.state.step}"
            return _execute(run, [first, *map("warning: {}".format, warnings), *lines])


def _begin_anew(state: RunState, loaded: LoadedConfig, run_dir: Path) -> list[str]:
    """Make room for more where the run had come to an end; says what it changed.

    Raises:
        ConfigError: if a limit of the config is reached already.
    """
    ending = limit_reached(loaded.config.run, state)
    if ending is None:
        return []
    if ending in ("solved", "exhausted"):
        steps = state.empty.steps
        state.empty = EmptySteps()
        return [f"it had ended after {steps} steps without a group to train on; they are counted anew"]
    done, key, more = f"{state.step} steps", "steps", str(2 * state.step)
    if ending == "hours":
        done, key, more = f"{state.seconds / 3600:.3g} hours", "max_hours", f"{state.seconds / 1800:.3g}"
    raise ConfigError(
        f"{run_dir.name} has done {done} and run.{key} is {getattr(loaded.config.run, key)}: "
        "there is nothing left to do",
        remedy=f"Give it more: --set run.{key}={more}.",
    )


def _steps(dump: Sequence[str]) -> list[int] | None:
    """The steps to dump; ``None`` means all."""
    if "all" in dump:
        return None
    if wrong := [word for word in dump if not word.isdecimal() or not int(word)]:
        raise ConfigError(f"--dump takes a step, counted from 1, or `all`; got {wrong[0]!r}")
    return [int(word) for word in dump]


def _execute(run: Run, lines: Sequence[str]) -> int:
    with ExitStack() as stack:
        stack.enter_context(run.progress)
        stack.enter_context(logging_to(run.path / "logs" / "driver.log", run.progress.say))
        for line in lines:
            run.progress.say(line)
        with _ending_recorded(run.path) as record:
            outcome = anyio.run(_interruptible, run)
            record(outcome)
    if outcome is None or outcome.ending == "stopped":
        after = "" if outcome is None else f" after step {outcome.steps}, with a checkpoint"
        saved = run.checkpoint(0).is_dir()
        advice = f"go on with: miles train --resume {run.path}" if saved else "nothing was saved yet: start it again"
        print(f"interrupted{after}; {advice}", flush=True)  # noqa: T201
        code = 130
    else:
        print(_summary(outcome, run.path), flush=True)  # noqa: T201
        code = 0
    if run.stuck:  # what hangs there would hold up the interpreter's own end as well
        os._exit(code)
    return code


@contextmanager
def _ending_recorded(run_dir: Path) -> Iterator[Callable[[Outcome | None], None]]:
    """Write into the folder how the run ended, for whoever looks at it later."""
    ending = Ending("failed")

    def record(outcome: Outcome | None) -> None:
        nonlocal ending
        if outcome is None or outcome.ending == "stopped":
            ending = Ending("interrupted")
        else:
            ending = Ending("solved" if outcome.ending == "solved" else "finished")

    try:
        yield record
    except BaseException as error:
        ending = Ending("failed", str(cause_of(error)))
        raise
    finally:
        with suppress(OSError):
            write_ending(run_dir, ending)


async def _interruptible(run: Run) -> Outcome | None:
    """The first signal stops the run after its step, the second cancels it; ``None`` means cancelled."""
    outcome: Outcome | None = None
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            loop.call_soon_threadsafe(tasks.cancel_scope.cancel)

        def stop() -> str:
            if run.stop():
                return "stopping after this step, with a checkpoint; again to end now"
            cancel()
            return "ending"

        def end() -> str:
            cancel()
            return "ending now; again to end at once"

        with on_interrupt(stop, end):
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
    return (
        f"trained: mean reward {first} -> {last} in {outcome.steps} steps{_ENDINGS[outcome.ending]} "
        f"({outcome.updates} weight updates)\n"
        f"files:   {run_dir} (metrics.jsonl, samples/, checkpoints/step-0 and step-{outcome.steps})\n"
        f"next:    miles report {run_dir}, --set run.seed=1, --set rollout.max_staleness=1, "
        "write a plugin (docs/first-plugin.md)"
    )
