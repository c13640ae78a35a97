"""Module parameters by the names that checkpoints give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.errors import CheckpointError, WeightSyncError
from miles_core.lib.layout import build_layout, parameter_table, view

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from miles_core.types import NameMapping


def without_aliases(mapping: NameMapping, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``tensors`` without the names that share the memory of another; of two, the one that ``mapping`` ties goes."""
    tied = mapping.tied or {}
    seen: set[tuple[int, int]] = set()
    unique = {}
    for name in sorted(tensors, key=lambda name: name in tied):
        place = (tensors[name].data_ptr(), tensors[name].nbytes)
        if place not in seen or not tensors[name].nbytes:
            seen.add(place)
            unique[name] = tensors[name].detach()
    return unique


def by_checkpoint_name(mapping: NameMapping, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Views of ``tensors`` (by module name) under checkpoint names; writing to one writes the parameter.

    Raises:
        CheckpointError: if a stack cannot be cut into its parts, or two parameters claim one name.
    """
    try:
        # what is tied was left out before
        layout = build_layout(mapping, parameter_table(tensors), {"tie_word_embeddings": False})
    except WeightSyncError as error:
        raise CheckpointError(error.message, remedy=error.remedy) from error
    if layout.unclaimed:
        raise CheckpointError(f"parameter {layout.unclaimed[0]}", remedy="Correct the rules of the bridge's mapping.")
    return {placement.tensor.name: view(tensors, placement) for placement in layout.placements}
