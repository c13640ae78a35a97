"""Episodes of each step as files, for people to look at after the fact: what ``miles report`` shows.

One archive per step, ``step-N.npz``, where N counts from 1 as in ``metrics.jsonl``. Routing and media tensors, which
are large and which nobody reads, are left out.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from miles_core.errors import DataError
from miles_core.lib.archive import dump_archive, load_archive
from miles_core.types import Trajectory
from miles_core.types.records import from_record, to_record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

FOLDER = "episodes"
"""Where a run's folder holds them."""

_FORMAT = 1
_PER_TOKEN = {"tokens": "int32", "loss_mask": "uint8", "logprobs": "float32"}
_FILE = re.compile(r"step-(\d+)\.npz")


@dataclass(frozen=True, eq=False)
class StepEpisodes:
    """Trajectories of one step; ``kept`` are the ids of those that filters let through to training.

    ``version`` is the committed policy version when the step was trained.
    """

    step: int
    version: int
    trajectories: tuple[Trajectory, ...]
    kept: frozenset[str]


def write_episodes(
    folder: Path, step: int, trajectories: Sequence[Trajectory], kept_ids: Collection[str], version: int
) -> Path:
    """Write one step's file into ``folder``, a run's ``episodes/``, and return its path.

    An older file of the step is replaced, whole for whole: whoever reads sees the one or the other.

    Raises:
        OSError: if the disk is full or not writable.
    """
    records = [to_record(_readable(trajectory)) for trajectory in trajectories]
    tree = {
        "format": _FORMAT,
        "step": step,
        "version": version,
        "kept": [trajectory.id for trajectory in trajectories if trajectory.id in kept_ids],
        "per_token": _pooled(records),
        "trajectories": records,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step}.npz"
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(dump_archive(tree))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def episode_files(run_dir: Path) -> list[Path]:
    """The files of a run, by step; none where none was written."""
    found = ((_FILE.fullmatch(path.name), path) for path in (run_dir / FOLDER).glob("step-*.npz"))
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]


def read_episodes(run_dir: Path, *, skipped: Callable[[str], None] | None = None) -> Iterator[StepEpisodes]:
    """The episodes of a run's folder, step after step, one file in memory at a time.

    ``skipped`` is told about each file that cannot be read, and reading goes on.

    Raises:
        DataError: naming the file, where ``skipped`` is not given.
    """
    for path in episode_files(run_dir):
        try:
            yield _load(path)
        except (ValueError, KeyError, TypeError, OSError) as error:
            message = f"{path.name} in {path.parent} is no file of episodes: {error}"
            if skipped is None:
                raise DataError(message, remedy="Delete it to read the others.") from error
            skipped(message)


def _load(path: Path) -> StepEpisodes:
    tree = load_archive(path.read_bytes())
    if tree["format"] != _FORMAT:
        raise ValueError(f"its format is {tree['format']!r}; this version reads {_FORMAT}")
    _unpool(tree["trajectories"], tree["per_token"])
    trajectories = tuple(from_record(record, Trajectory) for record in tree["trajectories"])
    return StepEpisodes(tree["step"], tree["version"], trajectories, frozenset(tree["kept"]))


def _readable(trajectory: Trajectory) -> Trajectory:
    samples = tuple(replace(sample, routing=None, media_tensors={}) for sample in trajectory.samples)
    return replace(trajectory, samples=samples)


def _pooled(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Take the arrays of all samples out, each kind as one array: many small ones are slow to write and to read."""
    import numpy as np

    pools = {}
    for name, dtype in _PER_TOKEN.items():
        arrays = [sample[name] for record in records for sample in record["samples"]]
        pools[name] = np.concatenate([np.zeros(0, dtype), *arrays])
    for record in records:
        for sample in record["samples"]:
            sample["length"] = len(sample["tokens"])
            for name in _PER_TOKEN:
                del sample[name]
    return pools


def _unpool(records: list[dict[str, Any]], pools: Mapping[str, Any]) -> None:
    """Give every sample its arrays back."""
    start = 0
    for record in records:
        for sample in record["samples"]:
            end = start + sample.pop("length")
            sample.update({name: pools[name][start:end] for name in _PER_TOKEN})
            start = end
