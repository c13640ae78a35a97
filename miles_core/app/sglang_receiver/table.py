"""The parameters of a served model, as they lie in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from miles_core.lib.layout import parameter_table

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from miles_core.types import ParameterTable, Shard

NAMING = "sglang"


def tensors_of(model: torch.nn.Module, prefix: str = "") -> dict[str, torch.Tensor]:
    """Every parameter and persistent buffer by name; one that has two names is there twice."""
    state = model.state_dict(prefix=prefix, keep_vars=True)
    return {name: value.detach() for name, value in state.items() if isinstance(value, torch.Tensor)}


def table_of(tensors: Mapping[str, torch.Tensor], shard: Shard, rearranged: Collection[str]) -> ParameterTable:
    """The table of a rank; elements of those in ``rearranged`` do not lie in the order of the checkpoint."""
    table = parameter_table(tensors, shard=shard, naming=NAMING)
    rows = tuple(replace(row, contiguous=False) if row.name in rearranged else row for row in table.parameters)
    return replace(table, parameters=rows)
