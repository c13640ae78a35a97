"""What it takes to compute one training step again and compare: the trainer's part of a debug dump."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.lib.archive import dump_archive, load_archive

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from miles_core.types import Estimates, StepBatch

MODEL_FOLDER = "model"
"""The state before the step, as a checkpoint's files."""

_FILE = "train.npz"


def write_train_dump(folder: Path, batch: StepBatch, estimates: Estimates, metrics: Mapping[str, float]) -> None:
    """Write the step's token arrays ``[N]``, its advantages and its metrics into ``folder``."""
    tree = {
        "rewards": batch.rewards,
        "proximal_logprobs": batch.proximal_logprobs,
        "reference_logprobs": batch.reference_logprobs,
        "advantages": estimates.advantages,
        "returns": estimates.returns,
        "metrics": dict(metrics),
    }
    (folder / _FILE).write_bytes(dump_archive(tree))


def read_train_dump(folder: Path) -> dict[str, Any]:
    """What :func:`write_train_dump` wrote.

    Raises:
        ValueError: if the file is damaged.
        FileNotFoundError: if there is none.
    """
    tree: dict[str, Any] = load_archive(folder / _FILE)
    return tree
