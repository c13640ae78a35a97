"""The memory of a model's parameters: given back to the system and taken again, under the same tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


class WeightMemory:
    """The storages of ``parameters``, which keep name, shape, dtype and sharing while their memory is away.

    Tensors that share a parameter's storage, such as those of ``state_dict()``, lose and regain memory with it.
    Reading or writing any of them in between is a memory fault: the owner keeps everyone out.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        owned: dict[int, torch.UntypedStorage] = {}
        for parameter in parameters:
            storage = parameter.untyped_storage()
            if storage.data_ptr() not in owned:
                owned[storage.data_ptr()] = _resizable(storage)
            mine = owned[storage.data_ptr()]
            if mine is not storage:
                place = (parameter.storage_offset(), parameter.size(), parameter.stride())
                parameter.data = torch.empty(0, dtype=parameter.dtype).set_(mine, *place)
        self._storages = [(storage, storage.nbytes()) for storage in owned.values()]

    def release(self) -> None:
        """Give the memory back; what it held is lost."""
        for storage, _ in self._storages:
            storage.resize_(0)

    def resume(self) -> None:
        """Take the memory again; it holds anything until it is written."""
        for storage, nbytes in self._storages:
            storage.resize_(nbytes)


def _resizable(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A storage in memory of torch's allocator: it can be resized, and its alignment is the same in every process.

    A checkpoint that is mapped into memory offers neither.
    """
    if storage.resizable():
        return storage
    return torch.empty(0, dtype=torch.uint8).set_(storage).clone().untyped_storage()
