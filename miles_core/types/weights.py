"""The words of a weight update: layouts, buckets and manifests, all plain JSON on the wire."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor by its checkpoint name; ``dtype`` is torch's name without the prefix, such as ``bfloat16``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one checkpoint tensor lives in a process: bytes ``offset:offset + nbytes`` of ``parameter``."""

    tensor: TensorSpec
    parameter: str
    offset: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where every checkpoint tensor of a model lives.

    ``unclaimed`` lists parameters and persistent buffers, or bytes of them, that no checkpoint tensor fills:
    not empty means that the model cannot be updated whole.
    """

    placements: tuple[Placement, ...]
    unclaimed: tuple[str, ...] = ()

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """The tensors by checkpoint name."""
        return {placement.tensor.name: placement.tensor for placement in self.placements}

    def to_json(self) -> dict[str, Any]:
        """A JSON object; :meth:`from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Layout:
        """The layout that :meth:`to_json` wrote."""
        placements = tuple(Placement(_tensor(p["tensor"]), p["parameter"], p["offset"]) for p in data["placements"])
        return cls(placements, tuple(data["unclaimed"]))


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors that travel together, back to back in this order; ``nbytes`` in all."""

    index: int
    tensors: tuple[TensorSpec, ...]
    nbytes: int

    def to_json(self) -> dict[str, Any]:
        """A JSON object; :meth:`from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Bucket:
        """The bucket that :meth:`to_json` wrote."""
        return cls(data["index"], tuple(_tensor(t) for t in data["tensors"]), data["nbytes"])


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one committed version consists of; ``checksums`` are xxh3-128 per bucket, in order."""

    version: int
    tensors: int
    nbytes: int
    checksums: tuple[str, ...]


def _tensor(data: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(data["name"], data["dtype"], tuple(data["shape"]), data["nbytes"])
