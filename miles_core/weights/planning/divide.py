"""Dividing a checkpoint tensor among ranks, as long as SGLang and Megatron would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.errors import WeightSyncError
from miles_core.lib.layout.sharding import config_count, shard_region

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.types import Part, Region, Shard, TensorSpec

_QUERIES = "num_attention_heads"


def divided(part: Part, spec: TensorSpec, shard: Shard, hf_config: Mapping[str, Any]) -> Region:
    """The box of a rank; ranks may share heads of keys and values, and nothing else.

    Raises:
        WeightSyncError: if the tensor does not divide.
    """
    expert = "{expert}" in part.checkpoint
    size = shard.etp_size if expert else shard.tp_size
    if part.split is not None and part.units in (None, _QUERIES):
        count = spec.shape[part.split] if part.units is None else config_count(hf_config, _QUERIES)
        if count % size:
            what = "rows or columns" if part.units is None else "heads"
            raise WeightSyncError(
                f"tensor {spec.name}: {count} {what} do not divide among {size} ranks",
                remedy="Choose a parallel size that divides the model's heads and experts.",
            )
    return shard_region(part, spec, shard, hf_config, expert=expert)
