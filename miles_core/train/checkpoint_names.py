"""Module parameters by the names that checkpoints give them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from miles_core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from miles_core.kinds.model_bridges import NameMapping, Stack


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
    named: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        for key, part in _parts(mapping, name, tensor):
            if key in named:
                raise CheckpointError(
                    f"checkpoint tensor {key} is claimed by {name} and by another parameter",
                    remedy="Correct the bridge's mapping, so that each parameter has names of its own.",
                )
            named[key] = part
    return named


def _parts(mapping: NameMapping, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    for stack in mapping.stacks:
        match = re.fullmatch(stack.parameter, name)
        if match is not None:
            yield from _unstacked(stack, match.groupdict(), name, tensor)
            return
    yield mapping.renamed(name), tensor


def _unstacked(
    stack: Stack, groups: Mapping[str, str], name: str, tensor: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    parts = len(stack.parts)
    if tensor.dim() < 2 or tensor.shape[1] % parts:
        raise CheckpointError(
            f"parameter {name} of shape {list(tensor.shape)} does not divide into entries of {parts} equal parts",
            remedy="Correct the stacks of the bridge's mapping.",
        )
    for expert, entry in enumerate(tensor.detach()):
        for part, view in zip(stack.parts, entry.chunk(parts), strict=True):
            yield part.format(expert=expert, **groups), view
