"""The checkpoint of a run: its tensors, hashed box by box as an engine would hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from miles_core.app.checkpoints import find
from miles_core.app.run_state import RunState
from miles_core.app.verify.report import CheckpointFinding, Difference
from miles_core.train.snapshot import WEIGHTS
from miles_core.train.tensor_files import read_tensors
from miles_core.types import Layout, Placement, TensorSpec
from miles_core.weights.buffers import byte_view, dtype_name, dtype_of

if TYPE_CHECKING:
    from pathlib import Path

    from miles_core.app.verify.engines import OnBytes
    from miles_core.app.weights_record import WeightsRecord
    from miles_core.types import Region


class CheckpointTensors:
    """The weights of a checkpoint, mapped, and read when they are hashed.

    Raises:
        CheckpointError: if the file is missing, cut short or damaged.
    """

    def __init__(self, path: Path) -> None:
        self._tensors, _ = read_tensors(path / WEIGHTS)

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """Every tensor by name."""
        return {
            name: TensorSpec(name, dtype_name(tensor), tuple(tensor.shape)) for name, tensor in self._tensors.items()
        }

    @property
    def layout(self) -> Layout:
        """All tensors, whole, as a trainer would send them."""
        return Layout(tuple(Placement(spec, spec.whole, spec.name, 0) for spec in self.specs.values()))

    def checksum(self, name: str, dtype: str, region: Region) -> str:
        """The xxh3-128 in hex of a box in a type; empty if the checkpoint has no such tensor."""
        tensor = self._tensors.get(name)
        if tensor is None or len(region) != tensor.ndim:
            return ""
        for dim, (start, stop) in enumerate(region):
            tensor = tensor.narrow(dim, start, stop - start)
        held = byte_view(tensor.to(dtype_of(dtype)).contiguous())
        return xxhash.xxh3_128_hexdigest(held.numpy().data)


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """A checkpoint by its ``name``; ``same``: it is of the version that is verified, or the one asked for."""

    name: str
    tensors: CheckpointTensors
    same: bool

    def compared(self, record: WeightsRecord, on_bytes: OnBytes) -> CheckpointFinding | None:
        """What the trainer sent against this; ``None`` where engines have loaded it by themselves."""
        if not record.checksums:
            return None
        specs = self.tensors.specs
        differences = []
        for number, (key, checksum) in enumerate(record.checksums.items()):
            name, region, dtype = _parse(key)
            spec = specs.get(name)
            box = region if region is not None or spec is None else spec.whole
            found = "" if spec is None else self.tensors.checksum(name, dtype, box or ())
            if found != checksum:
                differences.append(Difference(key.rpartition(":")[0], self.name, checksum, found))
            on_bytes(number + 1, len(record.checksums))
        return CheckpointFinding(self.name, len(record.checksums), tuple(differences))


def open_checkpoint(run_dir: Path, step: int | None, version: int) -> SavedWeights:
    """The checkpoint of ``step``, or the newest whole one; ``version`` is the one that is verified.

    Raises:
        CheckpointError: if there is none.
    """
    saved = find(run_dir, step)
    same = step is not None or RunState.from_json(saved.run["state"]).version == version
    return SavedWeights(saved.path.name, CheckpointTensors(saved.path), same)


def _parse(key: str) -> tuple[str, tuple[tuple[int, int], ...] | None, str]:
    """Name, box (``None``: whole) and type of what a manifest names."""
    label, _, dtype = key.rpartition(":")
    name, bracket, inner = label.partition("[")
    if not bracket:
        return name, None, dtype
    sides = (side.split(":") for side in inner.rstrip("]").split(", "))
    return name, tuple((int(start), int(stop)) for start, stop in sides), dtype
