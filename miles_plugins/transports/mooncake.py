"""The ``mooncake`` transport: the trainer writes into the engines' live parameters, by RDMA or TCP."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from miles_core.api import WeightSyncError
from miles_plugins.transports.transfer_engine.address import routed_address
from miles_plugins.transports.transfer_engine.endpoint import Endpoint, patience
from miles_plugins.transports.transfer_engine.facade import missing, takes_device_memory
from miles_plugins.transports.transfer_engine.offers import Offer
from miles_plugins.transports.transfer_engine.sender import Sender
from miles_plugins.transports.transfer_engine.wire import Wire, choose_wire, rdma_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from miles_core.api import Bucket, Opening, PluginContext


class Mooncake:
    """A delivery is ``{"stream": number, "bucket": index, "nbytes": n}``, for the bytes are in the parameters by then.

    What the trainer sent to a process that was stopped still lands in its parameters when it goes on; :meth:`close` in
    the engine ends that. An engine must close its end too where memory is freed and comes back at the same address.
    """

    reach = "network"

    class Config(BaseModel):
        """Options of ``[weights] use = "mooncake"``."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        protocol: Literal["auto", "tcp", "rdma"] = Field(
            "auto", description="auto: RDMA where Mooncake finds a device, else TCP"
        )
        devices: tuple[str, ...] = Field((), description='RDMA devices to use, such as ["mlx5_0"]; default: all')
        host: str | None = Field(
            None, min_length=1, description="IPv4 address at which peers reach this process; default: by the route"
        )
        stall_timeout: float | None = Field(
            None,
            gt=0,
            allow_inf_nan=False,
            description="seconds without progress after which an engine is given up; default: "
            "MC_TCP_PROGRESS_TIMEOUT_SEC of the environment, else 10",
        )

    def __init__(self, config: Config, context: PluginContext) -> None:
        self._config = config
        self._context = context
        self._endpoint: Endpoint | None = None
        self._seconds = 0.0
        self._sender: Sender | None = None
        self._sent: set[tuple[int, int]] = set()
        self._offered: frozenset[str] = frozenset()

    @staticmethod
    def unavailable() -> str | None:
        """Why it cannot be used in this process; ``None`` if it can."""
        return missing()

    def path(self) -> str:
        """Which way the bytes take: ``TCP (no RDMA device)``, ``RDMA over mlx5_0``."""
        return (self._wire() if self._endpoint is None else self._endpoint.wire).path

    def offer(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        """Register the parameters where they lie now, and say where that is.

        Raises:
            WeightSyncError: if Mooncake is absent, cannot register them, or their memory is released.
        """
        lengths = {name: length for name, tensor in tensors.items() if (length := _extent(tensor))}
        if any(tensors[name].device.type != "cpu" for name in lengths) and not takes_device_memory():
            raise WeightSyncError(
                "this build of Mooncake takes the memory of CPUs only; the parameters are on another device",
                remedy="Install miles-hub[mooncake] instead of miles-hub[mooncake-cpu].",
            )
        endpoint = self._opened(None)
        storages = [tensors[name].untyped_storage() for name in lengths]
        endpoint.memory.hold((storage.data_ptr(), storage.nbytes()) for storage in storages)
        addresses = {name: tensors[name].data_ptr() for name in lengths}
        for name, address in addresses.items():
            endpoint.memory.require(address, lengths[name], name)
        self._offered = frozenset(tensors)
        return Offer(endpoint.session, endpoint.wire.protocol, addresses, lengths).to_json()

    def open(self, opening: Opening) -> None:
        """Begin an update: check what the receivers offer, and look them up.

        Raises:
            WeightSyncError: if Mooncake is absent, or an offer does not fit what its receiver is to get.
        """
        sessions = [str(offer.get("session", "")) for stream in opening.streams for offer in stream.offers]
        endpoint = self._opened(sessions[0].rpartition(":")[0] if sessions else None)
        if self._sender is None:
            self._sender = Sender(endpoint, patience(self._config.stall_timeout))
        self._sent.clear()
        self._sender.open(opening)

    def send(self, bucket: Bucket, payload: memoryview) -> Mapping[str, Any]:
        """Write the bucket into all receivers of its stream, side by side.

        Raises:
            WeightSyncError: if the update is not open, or the bucket does not fit payload or parameters.
        """
        if self._sender is None:
            raise WeightSyncError(
                f"bucket {bucket.index} cannot be sent before open()", remedy="Open the update first."
            )
        key = (bucket.stream, bucket.index)
        if key in self._sent:
            raise WeightSyncError(f"bucket {bucket.index} was sent before and is not released")
        failed = self._sender.send(bucket, payload)
        self._sent.add(key)
        delivery: dict[str, Any] = {"stream": bucket.stream, "bucket": bucket.index, "nbytes": bucket.nbytes}
        return (
            {**delivery, "failed": {str(number): reason for number, reason in failed.items()}} if failed else delivery
        )

    def release(self, delivery: Mapping[str, Any]) -> None:
        """Nothing is left to free, for the bytes are written.

        Raises:
            WeightSyncError: if this end did not send it, or released it before.
        """
        key = (delivery.get("stream"), delivery.get("bucket"))
        if key not in self._sent:
            raise WeightSyncError(f"this transport holds no bucket {key[1]!r} of stream {key[0]!r} to release")
        self._sent.remove(key)

    def receive(self, delivery: Mapping[str, Any], bucket: Bucket, held: Callable[[], bytearray]) -> None:
        """Nothing to fetch: the bytes lie in the parameters.

        Raises:
            WeightSyncError: if they were not offered, or the delivery is of another bucket.
        """
        found = (delivery.get("bucket"), delivery.get("nbytes"))
        if found != (bucket.index, bucket.nbytes):
            raise WeightSyncError(
                f"bucket {bucket.index} has {bucket.nbytes} bytes; its delivery says bucket {found[0]!r}, {found[1]!r}"
            )
        unknown = sorted({placement.parameter for placement in bucket.placements} - self._offered)
        if unknown:
            raise WeightSyncError(
                f"bucket {bucket.index} fills {', '.join(unknown[:3])}, which this end did not offer",
                remedy="Begin the update first.",
            )

    def close(self) -> None:
        """Unregister all memory and close the ports."""
        self._sent.clear()
        self._offered = frozenset()
        self._sender = None
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None

    def _opened(self, peer: str | None) -> Endpoint:
        """Our end, at the configured address or at the one on the way to ``peer``."""
        if self._endpoint is None:
            wire = self._wire()
            patience(self._config.stall_timeout)
            self._endpoint = Endpoint(wire, self._config.host or routed_address(peer))
            self._context.logger.info("weights travel by %s, from or to %s", wire.path, self._endpoint.session)
        return self._endpoint

    def _wire(self) -> Wire:
        config = self._config
        return choose_wire(config.protocol, config.devices, () if config.protocol == "tcp" else rdma_devices())


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last; 0 if it has none."""
    if math.prod(tensor.shape) == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
