"""A bucket's tensors in one piece of torch's named shared memory, pickled as ``torch.multiprocessing`` pickles them."""

from __future__ import annotations

import base64
import io
import pickle
from typing import TYPE_CHECKING, Any

import torch
import torch.multiprocessing.reductions

from miles_plugins.transports.shared_memory import SHARED_MEMORY, no_room, reserve

if TYPE_CHECKING:
    from miles_core.api import Bucket

_reductions: Any = torch.multiprocessing.reductions  # without type information


class SharedTensors:
    """A copy of a bucket's tensors that other processes can open, until it is closed.

    Should this process die, torch's ``torch_shm_manager`` removes the memory.

    Raises:
        WeightSyncError: if shared memory is full or absent.
    """

    def __init__(self, bucket: Bucket, payload: memoryview) -> None:
        self._storage, self.name = _allocate(max(bucket.nbytes, 1))
        everything = torch.empty(0, dtype=torch.uint8).set_(self._storage)[: bucket.nbytes]
        if bucket.nbytes:
            everything.copy_(torch.frombuffer(payload, dtype=torch.uint8))
        self._tensors: list[tuple[str, torch.Tensor]] = []
        offset = 0
        for one in bucket.placements:  # planned so that each begins at a multiple of its element's size
            there = everything[offset : offset + one.nbytes]
            self._tensors.append((one.tensor.name, there.view(getattr(torch, one.tensor.dtype)).view(one.shape)))
            offset += one.nbytes

    def serialized(self, readers: int) -> str:
        """The list of ``(name, tensor)`` as SGLang's ``MultiprocessingSerializer`` writes it, for so many readers."""
        file = io.BytesIO()
        _Pickler(file, self._storage).dump(self._tensors)
        for _ in range(readers):  # each takes one back when it has opened the memory
            self._storage._shared_incref()  # type: ignore[no-untyped-call]
        return base64.b64encode(file.getvalue()).decode("ascii")

    def close(self) -> None:
        """Remove the memory, whether or not all readers opened it; those that did keep their mapping."""
        self._tensors.clear()
        # torch counts who holds it: one that died would keep it until this process ends, so the name goes here. At zero
        # torch would remove it too, and end the process because it is gone.
        self._storage._shared_incref()  # type: ignore[no-untyped-call]
        (SHARED_MEMORY / self.name).unlink(missing_ok=True)
        del self._storage


class _Pickler(pickle.Pickler):
    """Writes a named storage as its name; torch's own way needs a setting that all of the process shares."""

    def __init__(self, file: io.BytesIO, storage: torch.UntypedStorage) -> None:
        super().__init__(file)
        self._handle = storage._share_filename_cpu_()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            return _reductions.reduce_tensor(obj)
        if isinstance(obj, torch.storage.TypedStorage):
            return _reductions.reduce_typed_storage(obj)
        if isinstance(obj, torch.UntypedStorage):
            return _reductions.rebuild_storage_filename, (torch.UntypedStorage, *self._handle)
        return NotImplemented


def _allocate(size: int) -> tuple[torch.UntypedStorage, str]:
    try:
        storage = torch.UntypedStorage._new_using_filename_cpu(size)
        name = storage._share_filename_cpu_()[1].decode("ascii").removeprefix("/")
        reserve(name, size)
    except (OSError, RuntimeError) as error:
        raise no_room("tensor", size, error) from error
    return storage, name
