"""A model's tensors as a table, and boxes of checkpoint tensors as views into them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.lib.layout.build import row_major
from miles_core.types import Parameter, ParameterTable, Shard
from miles_core.types.weights import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from miles_core.types import Placement


def parameter_table(
    tensors: Mapping[str, torch.Tensor],
    *,
    shard: Shard = Shard(),  # noqa: B008 - frozen
    naming: str = "torch",
) -> ParameterTable:
    """The table of parameters and persistent buffers by name, as ``state_dict`` gives them."""
    owners: dict[int, str] = {}
    rows: list[Parameter] = []
    for name, tensor in tensors.items():
        has_memory = tensor.numel() > 0 and not tensor.is_meta
        owner = owners.setdefault(tensor.data_ptr(), name) if has_memory else name
        dtype = str(tensor.dtype).removeprefix("torch.")
        shares = None if owner == name else owner
        rows.append(Parameter(name, dtype, tuple(tensor.shape), shares, tensor.is_contiguous()))
    return ParameterTable(tuple(rows), shard, naming)


def view(tensors: Mapping[str, torch.Tensor], placement: Placement) -> torch.Tensor:
    """The box as a view into its parameter, detached from its graph: writing to it writes the model."""
    parameter = tensors[placement.parameter].detach()
    start = parameter.storage_offset() + placement.offset // ITEM_BYTES[placement.tensor.dtype]
    strides = row_major(placement.shape) if placement.strides is None else placement.strides
    return parameter.as_strided(placement.shape, strides, start)
