"""The engine's end: an update is a transaction on the live parameters of one rank."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from miles_core.errors import WeightSyncError
from miles_core.weights.live import LiveWeights
from miles_core.weights.update import OpenUpdate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch

    from miles_core.kinds.weight_transports import WeightTransport
    from miles_core.types import Bucket, ParameterTable, Placement


class ReceiverHost(Protocol):
    """What an engine offers to its receiver; all of it is called from worker threads."""

    def exclusive(self) -> AbstractContextManager[Any]:
        """Keep every forward pass out while the context is open."""

    def set_out_of_service(self, reason: str | None) -> None:
        """Serve nothing while there is a reason; ``None`` restores service.

        A reason that begins with ``updating`` passes by itself; any other lasts until a whole update commits.
        """

    def finalise(self) -> None:
        """Rebuild what is computed from the parameters; they themselves must not change."""

    def commit_version(self, version: int) -> None:
        """Later tokens come from ``version``; what was cached of earlier ones must not serve it."""


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """The last committed ``version`` (-1: none) and whether the weights are a mixture of versions."""

    version: int
    torn: bool


@dataclass(frozen=True, slots=True)
class Begun(ReceiverStatus):
    """What the trainer must know of a receiver: the version that it holds whole, and where its transport listens."""

    base: int | None = None
    offer: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Held(ReceiverStatus):
    """The xxh3-128 in hex of boxes, in the order asked for."""

    checksums: Sequence[str] = ()


class WeightReceiver:
    """``begin``, ``receive`` each bucket, ``verify``, ``commit``; or ``abort``. Calls may come from any thread.

    Bytes go straight into the live parameters, so from the first one until the commit the engine is out of service,
    and an abort in between leaves it so: torn, until a whole update commits. A transport that writes by itself tears
    them when the update begins. ``transports`` makes a transport by its name; ``version`` is the one that the engine
    already serves.
    """

    def __init__(
        self,
        table: ParameterTable,
        tensors: Mapping[str, torch.Tensor],
        transports: Callable[[str], WeightTransport],
        host: ReceiverHost,
        *,
        version: int = -1,
    ) -> None:
        self.table = table
        self._live = LiveWeights(table, tensors)
        self._tensors = tensors
        self._make = transports
        self._transports: dict[str, WeightTransport] = {}
        self._host = host
        self._version = version
        self._torn = False
        self._update: OpenUpdate | None = None
        self._lock = threading.Lock()

    @property
    def status(self) -> ReceiverStatus:
        """What the engine holds now."""
        return ReceiverStatus(self._version, self._torn)

    def begin(self, version: int, transport: str) -> Begun:
        """Open an update, whose bytes come by ``transport``; one that was open is given up.

        Raises:
            WeightSyncError: if ``version`` is below the committed one, there is no such transport, or the memory of the
                weights is released.
        """
        with self._lock:
            if version < self._version:
                raise WeightSyncError(
                    f"versions only grow: this engine committed {self._version}, version {version} was begun",
                    remedy="Publish a higher version.",
                )
            if not self._live.present:
                raise WeightSyncError(
                    "the memory of this engine's weights is released",
                    remedy="Call /resume_memory_occupation before the update.",
                )
            self._give_up()
            end = self._transport(transport)
            base = None if self._torn else self._version
            self._update = OpenUpdate(version, base, end)
            offer = getattr(end, "offer", None)
            if offer is None:
                return Begun(self._version, self._torn, base)
            offered = offer(self._tensors)
            self._tear(version)
            return Begun(self._version, self._torn, base, offered)

    def receive(self, version: int, bucket: Bucket, delivery: Mapping[str, Any]) -> None:
        """Write a bucket into the live parameters.

        Raises:
            WeightSyncError: if the bucket does not fit this model or came before, builds on weights that this engine
                has not, or its bytes cannot be had whole.
        """
        with self._lock:
            update = self._opened(version)
            update.check(bucket, self._live)
            _check_base(delivery, update)
            data = update.transport.receive(delivery, bucket, lambda: self._live.held(bucket))
            if data is not None:
                self._write(update, bucket, data)
            update.add(bucket)

    def verify(self, version: int, checksums: Mapping[int, Sequence[str]]) -> None:
        """Have the engine rebuild what depends on the parameters, then compare what they hold with ``checksums``.

        They are the xxh3-128 of each box, by the index of its bucket.

        Raises:
            WeightSyncError: if a bucket is missing, unexpected or differs.
        """
        with self._lock:
            update = self._opened(version)
            with self._host.exclusive():
                self._host.finalise()
            for index in sorted(checksums.keys() | update.buckets.keys()):
                self._compare(index, update.buckets.get(index), checksums.get(index))
            update.verified = True

    def commit(self, version: int, padding: int = 0) -> None:
        """Serve the new weights, which fill all parameters but for ``padding`` bytes.

        Raises:
            WeightSyncError: if the update is not verified or lacks a byte.
        """
        with self._lock:
            update = self._opened(version)
            if not update.verified:
                raise WeightSyncError(f"version {version} is not verified", remedy="Verify it before the commit.")
            update.check_whole(self.table, padding)
            self._host.commit_version(version)
            self._update, self._version, self._torn = None, version, False
            self._host.set_out_of_service(None)

    def abort(self) -> None:
        """Close the open update, if any; the engine stays out of service if a byte may have been written."""
        with self._lock:
            update = self._update
            self._give_up()
            if update is not None and self._torn:
                self._host.set_out_of_service(
                    f"weights are torn: the update to version {update.version} ended after {update.boxes} tensors; "
                    "publish a whole update"
                )

    def checksums(self, placements: Sequence[Placement]) -> Held:
        """What the parameters hold now of these boxes.

        Raises:
            WeightSyncError: if one does not lie in this model, or the memory of the weights is released.
        """
        with self._lock:
            if not self._live.present:
                raise WeightSyncError("the memory of this engine's weights is released")
            for placement in placements:
                self._live.check(placement)
            return Held(self._version, self._torn, self._live.checksums(placements))

    @contextmanager
    def discarding(self) -> Iterator[None]:
        """Keep updates away while the block makes the parameters lose their values: then they are torn.

        Raises:
            WeightSyncError: if an update is open.
        """
        with self._lock:
            if self._update is not None:
                raise WeightSyncError(
                    f"the weights cannot be released: the update to version {self._update.version} is open",
                    remedy="Commit or abort it first.",
                )
            for name in [name for name, end in self._transports.items() if hasattr(end, "offer")]:
                self._transports.pop(name).close()  # what it has registered goes away
            yield
            self._torn = True

    def close(self) -> None:
        """Release what the transports hold."""
        with self._lock:
            while self._transports:
                self._transports.popitem()[1].close()

    def _give_up(self) -> None:
        """Leave the open update, if any, and close what could still write into the parameters for it."""
        if self._update is None:
            return
        for name, end in list(self._transports.items()):
            if end is self._update.transport and hasattr(end, "offer"):
                del self._transports[name]
                end.close()
        self._update = None

    def _transport(self, name: str) -> WeightTransport:
        if name not in self._transports:
            self._transports[name] = self._make(name)
        return self._transports[name]

    def _tear(self, version: int) -> None:
        self._torn = True
        self._host.set_out_of_service(f"updating weights to version {version}")

    def _write(self, update: OpenUpdate, bucket: Bucket, data: bytes | bytearray | memoryview) -> None:
        arrived = memoryview(data).nbytes
        if arrived != bucket.nbytes:
            raise WeightSyncError(f"bucket {bucket.index} has {bucket.nbytes} bytes; {arrived} arrived")
        self._tear(update.version)
        with self._host.exclusive():
            self._live.write(bucket, data)

    def _opened(self, version: int) -> OpenUpdate:
        if self._update is None or self._update.version != version:
            state = "none is open" if self._update is None else f"version {self._update.version} is"
            raise WeightSyncError(f"no update to version {version} is open: {state}", remedy="Begin it first.")
        return self._update

    def _compare(self, index: int, bucket: Bucket | None, expected: Sequence[str] | None) -> None:
        if bucket is None or expected is None or len(expected) != len(bucket.placements):
            state = "never arrived" if bucket is None else "arrived, but has not one checksum for each tensor"
            raise WeightSyncError(f"bucket {index} {state}", remedy="Send all buckets and all their checksums.")
        held = self._live.checksums(bucket.placements)
        for placement, one, other in zip(bucket.placements, expected, held, strict=True):
            if one != other:
                raise WeightSyncError(
                    f"{placement.label} in bucket {index} is not what was sent: expected xxh3-128 {one}, "
                    f"{placement.parameter} holds {other}",
                    remedy="Publish again; if it recurs, check memory and transport of this host.",
                )


def _check_base(delivery: Mapping[str, Any], update: OpenUpdate) -> None:
    """A change is meaningless on other weights than those that it was made from."""
    if "base" in delivery and (update.base is None or delivery["base"] != update.base):
        holds = "torn weights" if update.base is None else f"version {update.base}"
        raise WeightSyncError(
            f"the delivery changes weights of version {delivery['base']!r}; this engine held {holds}",
            remedy="Send the whole weights.",
        )
