"""Which checkpoint a run goes on from: the reading side, without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from miles_core.app.saving import ROLLOUT_FILE, RUN_FILE
from miles_core.errors import CheckpointError
from miles_core.train.checkpoint import FORMAT, MANIFEST, steps_in

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A whole checkpoint: ``run`` is its ``state/run.json``, ``rollout`` the bytes of ``state/rollout.npz`` if there.

    ``warnings`` name the newer checkpoints that are broken and were passed over.
    """

    path: Path
    step: int
    run: dict[str, Any]
    rollout: bytes | None
    warnings: tuple[str, ...] = ()


class _BrokenError(CheckpointError):
    """An older checkpoint may do instead."""


def find(run_dir: Path, step: int | None = None) -> SavedCheckpoint:
    """The checkpoint of ``step``, or the newest whole one, of the run in ``run_dir``.

    Raises:
        CheckpointError: if there is none, the one asked for is broken, or a newer miles wrote it.
    """
    folder = run_dir / "checkpoints"
    steps = steps_in(folder)
    if not steps:
        raise CheckpointError(f"no checkpoint in {folder}", remedy="Start the run again without --resume.")
    if step is not None:
        if step not in steps:
            raise CheckpointError(f"no step-{step} in {folder}; there are: {', '.join(map(str, steps))}")
        return _load(steps[step], step)
    passed_over: list[_BrokenError] = []
    for number, path in reversed(steps.items()):
        try:
            found = _load(path, number)
        except _BrokenError as error:
            passed_over.append(error)
        else:
            warnings = (f"{error.message}; going back to step {number}" for error in passed_over)
            return replace(found, warnings=tuple(warnings))
    others = "".join(f"; {error.message}" for error in passed_over[1:])
    raise CheckpointError(f"{passed_over[0].message}{others}", remedy=passed_over[0].remedy)


def verify(path: Path) -> None:
    """Check that every file of the checkpoint is there with the size that its manifest says.

    Raises:
        CheckpointError: naming the file, the size that it had and the size that it has.
    """
    for name, size in _manifest(path)["files"].items():
        file = path / name
        present = file.stat().st_size if file.is_file() else None
        if present is None:
            raise _broken(f"{file} is missing")
        if present != size:
            raise _broken(f"{file} has {present} bytes; {size} were written")


def set_aside_newer(run_dir: Path, step: int) -> list[Path]:
    """Rename the checkpoints after ``step`` to ``step-N.old``, because a run that goes on writes them again.

    Returns their new paths.

    Raises:
        CheckpointError: if one cannot be renamed.
    """
    renamed = []
    for number, path in steps_in(run_dir / "checkpoints").items():
        if number <= step:
            continue
        names = (path.with_name(f"{path.name}.old{count or ''}") for count in range(10_000))
        target = next(name for name in names if not name.exists())
        try:
            path.rename(target)
        except OSError as error:
            raise CheckpointError(
                f"cannot rename {path}: {error.strerror}", remedy=f"Check that {path.parent} is a writable folder."
            ) from error
        renamed.append(target)
    return renamed


def _load(path: Path, step: int) -> SavedCheckpoint:
    verify(path)
    try:
        run = json.loads((path / RUN_FILE).read_text("utf-8"))
        rollout = (path / ROLLOUT_FILE).read_bytes() if (path / ROLLOUT_FILE).is_file() else None
    except (OSError, ValueError) as error:
        raise _broken(f"{path / RUN_FILE} cannot be read: {error}") from error
    if not isinstance(run, dict):
        raise _broken(f"{path / RUN_FILE} must hold a JSON object")
    return SavedCheckpoint(path, step, run, rollout)


def _manifest(path: Path) -> dict[str, Any]:
    if not (path / MANIFEST).parent.is_dir():
        raise _BrokenError(
            f"{path} holds a model and no state to resume from",
            remedy=f'Start a new run with model.path = "{path}" and model.init = "pretrained".',
        )
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
        version = int(manifest["format"])
        if version > FORMAT:
            raise CheckpointError(
                f"{path} has format {version}; this version of miles reads up to {FORMAT}",
                remedy="Upgrade miles-hub to the version that wrote it.",
            )
        return {"format": version, "files": {str(name): int(size) for name, size in manifest["files"].items()}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _broken(f"{path / MANIFEST} cannot be read: {type(error).__name__}: {error}") from error


def _broken(message: str) -> _BrokenError:
    return _BrokenError(message, remedy="Resume from another checkpoint of the run.")
