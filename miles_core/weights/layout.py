"""Layouts: which bytes of which parameter hold which checkpoint tensor."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from miles_core.errors import WeightSyncError
from miles_core.types import Layout, Placement, TensorSpec
from miles_core.weights.buffers import dtype_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from miles_core.kinds.model_bridges import NameMapping


def build_layout(mapping: NameMapping, tensors: Mapping[str, torch.Tensor], *, tie_word_embeddings: bool) -> Layout:
    """The layout of ``tensors``: every parameter and persistent buffer by module name, as ``state_dict`` gives them.

    A tied parameter takes no bytes of its own, whether ``tensors`` lists it or not. A stack that cannot be cut into
    its parts is ``unclaimed``.

    Raises:
        WeightSyncError: if a parameter is not contiguous, a tied one does not share its storage, or two parameters
            claim one checkpoint name.
    """
    tied = dict(mapping.tied or {}) if tie_word_embeddings else {}
    placements: list[Placement] = []
    unclaimed: list[str] = []
    for name, tensor in tensors.items():
        if name in tied:
            _check_shared(name, tied[name], tensors)
            continue
        _check_contiguous(name, tensor)
        claimed = _claimed(mapping, name, tensor)
        placements += claimed
        if not claimed:
            unclaimed.append(name)
    _check_unique(placements)
    return Layout(tuple(placements), tuple(unclaimed))


def view(tensors: Mapping[str, torch.Tensor], placement: Placement) -> torch.Tensor:
    """The checkpoint tensor as a view into its parameter, detached from its graph: writing to it writes the model."""
    flat = tensors[placement.parameter].detach().view(-1)
    start = placement.offset // flat.element_size()
    return flat[start : start + math.prod(placement.tensor.shape)].view(placement.tensor.shape)


def _claimed(mapping: NameMapping, name: str, tensor: torch.Tensor) -> list[Placement]:
    """The placements that fill this parameter; empty if they cannot."""
    for stack in mapping.stacks:
        match = re.fullmatch(stack.parameter, name)
        if match is not None:
            return list(_unstacked(stack.parts, match.groupdict(), name, tensor))
    return [Placement(_spec(mapping.renamed(name), tensor, tuple(tensor.shape)), name, 0)]


def _unstacked(parts: Sequence[str], groups: Mapping[str, str], name: str, tensor: torch.Tensor) -> Iterator[Placement]:
    shape = _part_shape(tensor, len(parts))
    if shape is None:
        return
    offset = 0
    for expert in range(tensor.shape[0]):
        for part in parts:
            spec = _spec(part.format(expert=expert, **groups), tensor, shape)
            yield Placement(spec, name, offset)
            offset += spec.nbytes


def _part_shape(tensor: torch.Tensor, parts: int) -> tuple[int, ...] | None:
    """The shape of one part of one entry; ``None`` if entries do not divide into so many parts."""
    entry = tuple(tensor.shape[1:])
    if tensor.dim() == 0 or parts == 0:
        return None
    if parts == 1:
        return entry
    if not entry or entry[0] % parts:
        return None
    return (entry[0] // parts, *entry[1:])


def _spec(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(name, dtype_name(tensor), shape, math.prod(shape) * tensor.element_size())


def _check_shared(name: str, target: str, tensors: Mapping[str, torch.Tensor]) -> None:
    if target not in tensors or tensors[name].data_ptr() != tensors[target].data_ptr():
        raise WeightSyncError(
            f"{name} must share the memory of {target}, because the model's config ties them; it does not",
            remedy="Call tie_weights() after loading, or set tie_word_embeddings = false in config.json.",
        )


def _check_contiguous(name: str, tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():
        raise WeightSyncError(
            f"parameter {name} must be contiguous to be updated in place; its strides are {tensor.stride()}",
            remedy="Make it contiguous after building the model.",
        )


def _check_unique(placements: Sequence[Placement]) -> None:
    owners: dict[str, str] = {}
    for placement in placements:
        name = placement.tensor.name
        if name in owners:
            raise WeightSyncError(
                f"checkpoint tensor {name} is claimed by both {owners[name]} and {placement.parameter}",
                remedy="Correct the bridge's mapping, so that each parameter has names of its own.",
            )
        owners[name] = placement.parameter


def is_tied(mapping: NameMapping, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether the model shares storage where the mapping says that it may."""
    return any(
        name in tensors and target in tensors and tensors[name].data_ptr() == tensors[target].data_ptr()
        for name, target in (mapping.tied or {}).items()
    )
