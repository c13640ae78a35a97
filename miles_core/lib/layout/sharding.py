"""Which box of a checkpoint tensor one rank of a parallel layout holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.errors import WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.types import Part, Region, Shard, TensorSpec


def shard_region(part: Part, spec: TensorSpec, shard: Shard, hf_config: Mapping[str, Any], *, expert: bool) -> Region:
    """The box of ``spec`` that ``part`` gives to a rank; ``expert``: the tensor is one expert's.

    Raises:
        WeightSyncError: if the dimension does not divide among the ranks.
    """
    rank, size = (shard.etp_rank, shard.etp_size) if expert else (shard.tp_rank, shard.tp_size)
    if part.split is None or size == 1:
        return spec.whole
    length = spec.shape[part.split]
    if part.units is None:
        start, stop = _span(spec.name, length, length, rank, size)
    else:
        units = config_count(hf_config, part.units)
        shared = units < size and size % units == 0  # neighbours have the same one
        rank, size = (rank * units // size, units) if shared else (rank, size)
        start, stop = _span(spec.name, length, units, rank, size)
    return tuple((start, stop) if dim == part.split else (0, n) for dim, n in enumerate(spec.shape))


def _span(name: str, length: int, units: int, rank: int, size: int) -> tuple[int, int]:
    if units % size or length % units:
        raise WeightSyncError(
            f"tensor {name}: {length} rows in {units} units do not divide among {size} ranks",
            remedy="Choose a parallel size that divides the model's heads and experts.",
        )
    step = length // size
    return rank * step, (rank + 1) * step


def config_count(hf_config: Mapping[str, Any], key: str) -> int:
    """A count in ``config.json``, or in its ``text_config``.

    Raises:
        WeightSyncError: if there is none.
    """
    nested = hf_config.get("text_config")
    for config in (hf_config, nested if isinstance(nested, dict) else {}):
        value = config.get(key)
        if isinstance(value, int) and value > 0:
            return value
    raise WeightSyncError(f"config.json must have the positive number {key}", remedy="Use the model's own config.json.")


def local_experts(shard: Shard, experts: int) -> range:
    """The experts that a rank holds whole or in part, of ``experts`` in all.

    Raises:
        WeightSyncError: if they do not divide among the ranks.
    """
    if experts % shard.ep_size:
        raise WeightSyncError(f"{experts} experts do not divide among {shard.ep_size} expert-parallel ranks")
    count = experts // shard.ep_size
    return range(shard.ep_rank * count, (shard.ep_rank + 1) * count)
