"""Memory for copies of tensors, kept from one copy to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


class CopyBuffers:
    """Copies tensors into the CPU's memory that was given back before; one that is still in use is never touched.

    Fresh memory is mapped page by page, which takes longer than the copy itself.
    """

    def __init__(self) -> None:
        self._free: dict[str, torch.Tensor] = {}

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous copy of ``tensor`` on the CPU; ``name`` finds memory of its size."""
        buffer = self._free.pop(name, None)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty_like(tensor, memory_format=torch.contiguous_format, device="cpu")
        return buffer.copy_(tensor.detach())

    def give_back(self, copies: Mapping[str, torch.Tensor]) -> None:
        """Let the memory of ``copies``, by the names that they were made with, be used again; from any thread."""
        self._free.update(copies)
