"""``miles eval``: score a checkpoint of a run, or a model, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def evaluate(
    run: str,
    /,
    *,
    checkpoint: str | None = None,
    overrides: Annotated[tuple[str, ...], Parameter(name="--set", negative=(), show_default=False)] = (),
) -> int:
    """Score a checkpoint on the tasks of the config's [eval] table: mean reward, pass@k, and a 95 % interval.

    The metrics go to evals/step-N.json in the run's folder, or into a new folder below runs/evals/.

    Parameters
    ----------
    run
        A run (its folder, its id below runs/, or `latest`), or a config file, whose model.path is then scored.
    checkpoint
        The step of the run's checkpoint, such as 40; the newest if not given. Or a model directory.
    overrides
        KEY=VALUE replaces one value of the config, such as eval.samples_per_task=8; may be given several times.
    """
    import anyio

    from miles_core.app.checks import check_run
    from miles_core.app.evaluate import evaluate as run_evaluation
    from miles_core.app.evaluator import summary
    from miles_core.app.run_dir import create_run_dir, write_records
    from miles_core.app.wiring import wire
    from miles_core.config.load import load_config
    from miles_core.telemetry.find import find_run
    from miles_core.telemetry.logs import logging_to
    from miles_core.telemetry.progress import TrainingProgress

    is_config = Path(run).is_file()
    run_dir = None if is_config else find_run(run, Path("runs"))
    loaded = load_config(Path(run) if run_dir is None else run_dir / "config.toml", overrides)
    wiring = wire(loaded, Path())
    lock = check_run(wiring)
    model, step = _model(run_dir, checkpoint, wiring.model.path)
    work_dir = create_run_dir(loaded, below="evals") if run_dir is None else _folder(run_dir / "evals")
    config_file = write_records(work_dir, loaded, lock)
    wiring = wiring.rewired(config_file, work_dir)
    with TrainingProgress(None, "evaluation") as progress, logging_to(work_dir / "logs" / "driver.log", progress.say):
        metrics = anyio.run(run_evaluation, wiring, config_file, model, step, progress)
    print(f"{model}: {summary(metrics)}")  # noqa: T201
    print(f"files: {work_dir / f'step-{step}.json'}")  # noqa: T201
    return 0


def _folder(path: Path) -> Path:
    from miles_core.errors import CheckpointError

    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot create {path}: {error.strerror}", remedy="Make the run's folder writable."
        ) from error
    return path


def _model(run_dir: Path | None, checkpoint: str | None, model_path: Path) -> tuple[Path, int]:
    """The directory to serve and the step that it belongs to."""
    from miles_core.app.checkpoints import find
    from miles_core.errors import CheckpointError

    if checkpoint is not None and not checkpoint.isdecimal():
        return Path(checkpoint).resolve(), 0
    if run_dir is None:
        if checkpoint is not None:
            raise CheckpointError(
                f"a config file has no checkpoint {checkpoint}", remedy="Name the run instead, or a model directory."
            )
        return model_path, 0
    saved = find(run_dir, None if checkpoint is None else int(checkpoint))
    return saved.path, saved.step
