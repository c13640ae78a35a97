"""Debug dumps: everything of a step, so that it can be computed again without engines."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from miles_core.errors import ConfigError
from miles_core.lib.archive import dump_archive, load_archive
from miles_core.rollout.step import StepRollout
from miles_core.train.batching import TrainStep

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

CONFIG = "config.toml"
_FILE = "rollout.npz"


@dataclass(frozen=True, slots=True)
class Dumper:
    """Chooses the steps to dump (counted from 1; ``None`` means all) and writes the driver's part of each."""

    run_dir: Path
    steps: Collection[int] | None

    def folder(self, step: int) -> Path | None:
        """Where the dump of a step goes, if it is chosen."""
        return dump_folder(self.run_dir, step) if self.steps is None or step in self.steps else None

    def write(self, folder: Path, rollout: StepRollout, step: TrainStep) -> None:
        """Write the rollout, before the trainer adds its part."""
        folder.mkdir(parents=True, exist_ok=True)
        tree = {
            "rollout": rollout.to_record(),
            "learning_rate": step.learning_rate,
            "denominator_tokens": step.denominator_tokens,
        }
        (folder / _FILE).write_bytes(dump_archive(tree))
        shutil.copy2(self.run_dir / CONFIG, folder / CONFIG)  # that of the run may change when it is resumed


def dump_folder(run_dir: Path, step: int) -> Path:
    """The folder of a step's dump."""
    return run_dir / "dumps" / f"step-{step}"


def read_dump(folder: Path) -> tuple[StepRollout, TrainStep]:
    """The rollout of a dump, and the training step that was made of it.

    Raises:
        ConfigError: if there is no dump of that step, or it is damaged.
    """
    try:
        tree: dict[str, Any] = load_archive(folder / _FILE)
        rollout = StepRollout.from_record(tree["rollout"])
    except FileNotFoundError:
        dumps = sorted(path.name for path in folder.parent.glob("step-*")) if folder.parent.is_dir() else []
        raise ConfigError(
            f"no dump in {folder}; dumps of this run: {', '.join(dumps) or 'none'}",
            remedy="Train with --dump N, where N is the step as metrics.jsonl counts it.",
        ) from None
    except ValueError as error:
        raise ConfigError(f"{folder / _FILE}: {error}", remedy="Make the dump again.") from error
    return rollout, TrainStep(rollout.step, rollout.kept, tree["denominator_tokens"], tree["learning_rate"])
