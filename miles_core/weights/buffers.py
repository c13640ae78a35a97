"""Tensors as bytes: what transports carry and checksums cover."""

from __future__ import annotations

import torch

from miles_core.errors import WeightSyncError


def byte_view(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes ``[nbytes]`` of a contiguous tensor, sharing its memory and detached from its graph."""
    return tensor.detach().view(-1).view(torch.uint8)


def dtype_name(tensor: torch.Tensor) -> str:
    """The name that :class:`~miles_core.types.TensorSpec` uses, such as ``bfloat16``."""
    return str(tensor.dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The torch type of that name.

    Raises:
        WeightSyncError: if this torch has none.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise WeightSyncError(
            f"a tensor type must be one of torch's, such as bfloat16; got {name!r}",
            remedy="Run the same version of torch in trainer and engines.",
        )
    return dtype
