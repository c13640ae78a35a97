"""The words of a weight update: parameters, placements, buckets and manifests, all plain JSON on the wire."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Region: TypeAlias = tuple[tuple[int, int], ...]
"""A box in a tensor: start and stop in each dimension."""

ITEM_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8,
}  # fmt: skip
"""Bytes of one element, by torch's name of the type without the prefix."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A whole checkpoint tensor by its name; ``dtype`` is torch's name without the prefix, such as ``bfloat16``."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def whole(self) -> Region:
        """The box that is all of it."""
        return tuple((0, size) for size in self.shape)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a box of a checkpoint tensor lives in a process.

    The box begins ``offset`` bytes into ``parameter``; ``strides`` are the parameter's, in elements, along the
    dimensions of the checkpoint tensor, ``None`` where the box lies there back to back. ``tensor.dtype`` is the
    parameter's type.
    """

    tensor: TensorSpec
    region: Region
    parameter: str
    offset: int
    strides: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the box."""
        return tuple(stop - start for start, stop in self.region)

    @property
    def nbytes(self) -> int:
        """Bytes of the box."""
        return math.prod(self.shape) * ITEM_BYTES[self.tensor.dtype]

    @property
    def label(self) -> str:
        """The tensor's name, and which box of it unless it is whole: ``w[0:4, 8:16]``."""
        if self.region == self.tensor.whole:
            return self.tensor.name
        return f"{self.tensor.name}[{', '.join(f'{start}:{stop}' for start, stop in self.region)}]"

    def to_json(self) -> list[Any]:
        """A JSON array; :meth:`from_json` reads it."""
        spec = self.tensor
        return [spec.name, spec.dtype, spec.shape, self.region, self.parameter, self.offset, self.strides]

    @classmethod
    def from_json(cls, data: list[Any]) -> Placement:
        """The placement that :meth:`to_json` wrote."""
        name, dtype, shape, region, parameter, offset, strides = data
        spec = TensorSpec(name, dtype, tuple(shape))
        box = tuple((start, stop) for start, stop in region)
        return cls(spec, box, parameter, offset, None if strides is None else tuple(strides))


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a process holds which boxes of a model's checkpoint tensors.

    ``unclaimed`` lists parameters and persistent buffers that checkpoint tensors do not fill, with the reason: not
    empty means that the model cannot be updated whole. ``padding`` is bytes of parameters that belong to no checkpoint
    tensor by design, such as the rows that round a vocabulary up.
    """

    placements: tuple[Placement, ...]
    unclaimed: tuple[str, ...] = ()
    padding: int = 0

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """The tensors by checkpoint name."""
        return {placement.tensor.name: placement.tensor for placement in self.placements}


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of a model a process holds: ranks and sizes of tensor, expert, expert-tensor and pipeline parallelism.

    Tensors of experts are divided by ``ep`` (whole experts) and ``etp`` (within each), all others by ``tp``.
    """

    tp_rank: int = 0
    tp_size: int = 1
    ep_rank: int = 0
    ep_size: int = 1
    etp_rank: int = 0
    etp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1

    def check(self) -> None:
        """Make sure that each rank is one of its size.

        Raises:
            ValueError: if one is not.
        """
        for kind in ("tp", "ep", "etp", "pp"):
            rank, size = getattr(self, f"{kind}_rank"), getattr(self, f"{kind}_size")
            if not (type(rank) is type(size) is int and 0 <= rank < size):
                raise ValueError(f"{kind} rank {rank!r} of {size!r} is none")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter or persistent buffer of a process; ``shares`` names the one whose storage it uses, if another does.

    ``contiguous`` says whether its elements lie in row-major order without gaps.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    shares: str | None = None
    contiguous: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class ParameterTable:
    """All that one rank of an engine, or of a trainer, must be sent.

    ``naming`` says whose names and fusions these are: ``"torch"`` for the modules of transformers, or a key of a
    bridge's ``engine_mappings``, such as ``"sglang"``.
    """

    parameters: tuple[Parameter, ...]
    shard: Shard = field(default_factory=Shard)
    naming: str = "torch"

    def to_json(self) -> dict[str, Any]:
        """A JSON object; :meth:`from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ParameterTable:
        """The table that :meth:`to_json` wrote.

        Raises:
            ValueError: if a member is of another form, or two parameters have one name; also TypeError or KeyError.
        """
        rows = tuple(
            Parameter(p["name"], p["dtype"], tuple(p["shape"]), p["shares"], p["contiguous"])
            for p in data["parameters"]
        )
        table = cls(rows, Shard(**data["shard"]), data["naming"])
        texts = (table.naming, *(text for row in rows for text in (row.name, row.dtype, row.shares or "")))
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("names and types must be texts")
        if len({row.name for row in rows}) < len(rows):
            raise ValueError("two parameters have one name")
        if not all(type(size) is int and size >= 0 for row in rows for size in row.shape):
            raise ValueError("shapes must be whole numbers from 0 on")
        table.shard.check()
        return table


@dataclass(frozen=True, slots=True)
class Bucket:
    """Boxes that travel together, back to back in this order; ``stream`` numbers those who get the same buckets."""

    index: int
    placements: tuple[Placement, ...]
    nbytes: int
    stream: int = 0

    def to_json(self) -> dict[str, Any]:
        """A JSON object; :meth:`from_json` reads it."""
        placements = [placement.to_json() for placement in self.placements]
        return {"index": self.index, "placements": placements, "nbytes": self.nbytes, "stream": self.stream}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Bucket:
        """The bucket that :meth:`to_json` wrote."""
        placements = tuple(Placement.from_json(one) for one in data["placements"])
        return cls(data["index"], placements, data["nbytes"], data["stream"])


@dataclass(frozen=True, slots=True)
class StreamTargets:
    """What receivers of one stream told the trainer at the beginning of an update, in the order of ``offers``.

    ``offers`` is what each receiver's end of the transport offered, ``bases`` the version that each holds whole, or
    ``None``; ``placements`` are those of all buckets of the stream.
    """

    placements: tuple[Placement, ...]
    offers: tuple[Mapping[str, Any], ...]
    bases: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Opening:
    """What the trainer's end of a transport is told when an update begins: its version, and who gets what.

    ``group`` is what a process group of trainer and engines needs to know, where the transport uses one.
    """

    version: int
    streams: tuple[StreamTargets, ...] = ()
    group: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one committed version consists of: how many tensors, and how many bytes each receiver got at most.

    ``checksums`` are the xxh3-128 in hex of each box by its :attr:`Placement.label` and type, ``label:dtype``.
    """

    version: int
    tensors: int
    nbytes: int
    checksums: Mapping[str, str] = field(default_factory=dict)
