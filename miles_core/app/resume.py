"""Going on with a run: from which checkpoint, and what has changed since."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from miles_core.app.checkpoints import find, set_aside_newer
from miles_core.app.run_state import RunState
from miles_core.errors import CheckpointError, ConfigError
from miles_core.lib.archive import load_archive
from miles_core.plugins.lock import PluginLock
from miles_core.telemetry.ending import FILE as ENDING_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from miles_core.app.checkpoints import SavedCheckpoint
    from miles_core.config.schema import Config

# What makes the saved position or weights meaningless; changes of the data itself are found by its source, of the
# model's shape by the trainer.
_FIXED = {
    "run.seed": "it decides the order of the data",
    "model.dtype": "the saved weights and optimizer have the other type",
}
_NOT_COMPARED = {"run.base_dir", "run.dir", "run.id", "run.name"}


@dataclass(frozen=True, eq=False)
class Resumed:
    """A checkpoint to go on from; ``rollout`` holds the states of scheduler and buffer, ``None`` at step 0."""

    path: Path
    state: RunState
    rollout: Mapping[str, Any] | None


def load_resumed(run_dir: Path) -> tuple[Resumed, SavedCheckpoint]:
    """The newest whole checkpoint of a run; its warnings say what was passed over.

    Raises:
        CheckpointError: if there is none, or its files are damaged.
    """
    saved = find(run_dir)
    try:
        state = RunState.from_json(saved.run["state"])
        rollout = None if saved.rollout is None else load_archive(saved.rollout)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the state of {saved.path} is damaged: {type(error).__name__}: {error}",
            remedy="Move that checkpoint away to resume from the one before it.",
        ) from error
    return Resumed(saved.path, state, rollout), saved


def clear_later(run_dir: Path, step: int) -> list[str]:
    """Rename checkpoints after ``step``, so that these steps can be saved again; one line for each.

    The ending that the run had is forgotten: it goes on.
    """
    (run_dir / ENDING_FILE).unlink(missing_ok=True)
    return [f"{path.stem} is now {path.name}" for path in set_aside_newer(run_dir, step)]


def differences(saved: Mapping[str, Any], config: Config, lock: Sequence[Mapping[str, Any]]) -> list[str]:
    """What has changed since a checkpoint was written, one line per key or plugin.

    Another build of a plugin is told and not refused: to go on with a repaired one is what resuming is for. One that is
    missing never comes so far.

    Raises:
        ConfigError: for a change that a resumed run cannot work with.
    """
    before, after = dict(_flat(saved.get("config", {}))), dict(_flat(config.model_dump(mode="json")))
    changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    changed = [key for key in changed if key not in _NOT_COMPARED]
    lines = [f"{key}: {_shown(before.get(key))} -> {_shown(after.get(key))}" for key in changed]
    for key, reason in _FIXED.items():
        if key in changed:
            raise ConfigError(
                f"cannot resume with another {key}, since {reason}: "
                f"{_shown(before.get(key))} -> {_shown(after.get(key))}",
                remedy="Leave it as it was, or start a new run with model.path set to the checkpoint.",
            )
    return lines + PluginLock.from_json(saved.get("plugins", ())).differences(PluginLock.from_json(lock))


def _flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(tree, list | tuple) and any(isinstance(value, Mapping) for value in tree):
        for index, value in enumerate(tree):
            yield from _flat(value, f"{prefix}.{index}")
    elif tree is not None and tree not in ([], ()):
        yield prefix, list(tree) if isinstance(tree, tuple) else tree


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)
