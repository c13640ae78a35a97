"""A process group that meets the one which SGLang's ``init_custom_process_group`` makes; the trainer is rank 0."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed

from miles_core.api import WeightSyncError

_distributed: Any = torch.distributed  # it exports the classes used here, and its type information leaves them out


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Who meets where: ``world_size`` ranks with the trainer at ``address:port``, each step within ``timeout`` seconds.

    ``name`` is new for every group that is made.
    """

    name: str
    address: str
    port: int
    world_size: int
    backend: Literal["gloo", "nccl"]
    timeout: float

    def __str__(self) -> str:
        return f"the {self.backend} group of {self.world_size} ranks at {self.address}:{self.port}"


class BroadcastGroup:
    """Belongs to no default group and is registered nowhere, so that others may exist in the process.

    Raises:
        WeightSyncError: if nothing can listen at the address, or there is no GPU for NCCL.
    """

    def __init__(self, plan: GroupPlan) -> None:
        self.plan = plan
        self._timeout = timedelta(seconds=plan.timeout)
        self._backend: Any = None
        if plan.backend == "nccl" and not torch.cuda.is_available():
            raise WeightSyncError(
                "the engines are on GPUs, whose group needs NCCL; the trainer sees no GPU",
                remedy='Run the trainer on a GPU, or set [weights] use = "disk".',
            )
        try:
            # Not waiting for anyone: engines are asked to join when it is sure that someone listens.
            self._store: Any = _distributed.TCPStore(
                plan.address, plan.port, plan.world_size, True, self._timeout, wait_for_workers=False
            )
        except RuntimeError as error:
            raise WeightSyncError(
                f"nothing can listen at {plan.address}:{plan.port} for {plan}: {error}",
                remedy="Publish again, which takes another port.",
            ) from error

    def join(self) -> None:
        """Wait for the other ranks, the first time.

        Raises:
            RuntimeError: if one is missing after the time-out.
        """
        if self._backend is None:
            self._backend = _nccl(self) if self.plan.backend == "nccl" else _gloo(self)

    def broadcast(self, data: memoryview) -> None:
        """Send bytes to all other ranks.

        Raises:
            RuntimeError: if one does not take them within the time-out.
        """
        if not data.nbytes:
            return
        assert self._backend is not None
        tensor = torch.frombuffer(data, dtype=torch.uint8)
        if self.plan.backend == "nccl":
            tensor = tensor.cuda()
        self._backend.broadcast(tensor, 0, self._timeout).wait(self._timeout)

    def prefixed_store(self, device: str) -> Any:
        """Where torch's ``_new_process_group_helper``, called by SGLang, looks for the ranks of a backend."""
        name = self.plan.name
        own = _distributed.PrefixStore(f"{name}/", _distributed.PrefixStore(name, self._store))
        return _distributed.PrefixStore(f"{device}/", own)

    @property
    def timeout(self) -> timedelta:
        """How long one step may take."""
        return self._timeout

    def close(self) -> None:
        """Leave; ranks that wait to meet this one end with an error, in a broadcast by their time-out at the latest."""
        if self._backend is not None:
            self._backend.shutdown()
        self._backend = self._store = None


def _gloo(group: BroadcastGroup) -> Any:
    return _distributed.ProcessGroupGloo(group.prefixed_store("cpu"), 0, group.plan.world_size, group.timeout)


def _nccl(group: BroadcastGroup) -> Any:
    options = _distributed.ProcessGroupNCCL.Options()
    options._timeout = group.timeout
    return _distributed.ProcessGroupNCCL(group.prefixed_store("cuda"), 0, group.plan.world_size, options)
