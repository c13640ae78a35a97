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
    """The table of parameters and persistent buffers by name, as ``state_dict`` gives them.

    Those that begin at one address share memory, that of the largest of them, or the first of several; without
    addresses, on the ``meta`` device, those that are one object.
    """
    owners: dict[int, str] = {}
    for name, tensor in tensors.items():
        other = tensors[owners.setdefault(_beginning(tensor), name)]
        if tensor.nbytes > other.nbytes:
            owners[_beginning(tensor)] = name
    rows: list[Parameter] = []
    for name, tensor in tensors.items():
        owner = owners[_beginning(tensor)]
        dtype = str(tensor.dtype).removeprefix("torch.")
        shares = None if owner == name else owner
        rows.append(Parameter(name, dtype, tuple(tensor.shape), shares, tensor.is_contiguous()))
    return ParameterTable(tuple(rows), shard, naming)


def _beginning(tensor: torch.Tensor) -> int:
    """What only tensors that begin in one place have in common."""
    return tensor.data_ptr() if tensor.numel() and not tensor.is_meta else id(tensor)


def view(tensors: Mapping[str, torch.Tensor], placement: Placement) -> torch.Tensor:
    """The box as a view into its parameter, detached from its graph: writing to it writes the model."""
    parameter = tensors[placement.parameter].detach()
    start = parameter.storage_offset() + placement.offset // ITEM_BYTES[placement.tensor.dtype]
    strides = row_major(placement.shape) if placement.strides is None else placement.strides
    return parameter.as_strided(placement.shape, strides, start)
