"""The engine's end: an update is a transaction on the live parameters."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from miles_core.errors import WeightSyncError
from miles_core.weights.live import LiveWeights
from miles_core.weights.update import OpenUpdate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch

    from miles_core.kinds.weight_transports import WeightTransport
    from miles_core.types import Bucket, Layout


class ReceiverHost(Protocol):
    """What an engine offers to its receiver; all of it is called from worker threads."""

    def exclusive(self) -> AbstractContextManager[Any]:
        """Keep every forward pass out while the context is open."""

    def set_out_of_service(self, reason: str | None) -> None:
        """Serve nothing while there is a reason; ``None`` restores service.

        A reason that begins with ``updating`` passes by itself; any other lasts until a whole update commits.
        """

    def commit_version(self, version: int) -> None:
        """Later tokens come from ``version``; what was cached of earlier ones must not serve it."""


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """The last committed ``version`` (-1: none) and whether the weights are a mixture of versions."""

    version: int
    torn: bool


class WeightReceiver:
    """``begin``, ``receive`` each bucket, ``verify``, ``commit``; or ``abort``. Calls may come from any thread.

    Bytes go straight into the live parameters, so from the first one until the commit the engine is out of service,
    and an abort in between leaves it so: torn, until a whole update commits. ``version`` is the one that the engine
    already serves.
    """

    def __init__(
        self,
        layout: Layout,
        tensors: Mapping[str, torch.Tensor],
        transport: WeightTransport,
        host: ReceiverHost,
        *,
        version: int = -1,
    ) -> None:
        self.layout = layout
        self._live = LiveWeights(layout, tensors)
        self._transport = transport
        self._host = host
        self._version = version
        self._torn = False
        self._update: OpenUpdate | None = None
        self._lock = threading.Lock()

    @property
    def status(self) -> ReceiverStatus:
        """What the engine holds now."""
        return ReceiverStatus(self._version, self._torn)

    def begin(self, version: int) -> None:
        """Open an update.

        Raises:
            WeightSyncError: if ``version`` is not above the committed one, an update is open, or the memory of the
                weights is released.
        """
        with self._lock:
            if self._update is not None:
                raise WeightSyncError(
                    f"the update to version {self._update.version} is still open", remedy="Abort it first."
                )
            if version <= self._version:
                raise WeightSyncError(
                    f"versions only grow: this engine committed {self._version}, version {version} was begun",
                    remedy="Publish a higher version.",
                )
            if not self._live.present:
                raise WeightSyncError(
                    "the memory of this engine's weights is released",
                    remedy="Call /resume_memory_occupation before the update.",
                )
            self._update = OpenUpdate(version)

    def receive(self, version: int, bucket: Bucket, delivery: Mapping[str, Any]) -> None:
        """Write a bucket into the live parameters.

        Raises:
            WeightSyncError: if the bucket does not fit this model or came before, or its bytes cannot be had whole.
        """
        with self._lock:
            update = self._opened(version)
            update.check(bucket, self._live.placements)
            data = self._transport.receive(delivery, bucket)
            arrived = memoryview(data).nbytes
            if arrived != bucket.nbytes:
                raise WeightSyncError(f"bucket {bucket.index} has {bucket.nbytes} bytes; {arrived} arrived")
            self._torn = True
            self._host.set_out_of_service(f"updating weights to version {version}")
            with self._host.exclusive():
                self._live.write(bucket, data)
            update.add(bucket)

    def verify(self, version: int, checksums: Sequence[str]) -> None:
        """Hash what the live parameters now hold, bucket by bucket, and compare.

        Raises:
            WeightSyncError: if a bucket is missing, unexpected or differs.
        """
        with self._lock:
            update = self._opened(version)
            expected = dict(enumerate(checksums))
            for index in sorted(expected.keys() | update.buckets.keys()):
                self._compare(index, update.buckets.get(index), expected.get(index))
            update.verified = True

    def commit(self, version: int) -> None:
        """Serve the new weights.

        Raises:
            WeightSyncError: if the update is not verified or lacks a tensor.
        """
        with self._lock:
            update = self._opened(version)
            if not update.verified:
                raise WeightSyncError(f"version {version} is not verified", remedy="Verify it before the commit.")
            missing = update.missing(self._live.placements)
            if missing:
                raise WeightSyncError(
                    f"version {version} lacks {len(missing)} tensors of this engine: {', '.join(missing[:3])}",
                    remedy="Plan again from this engine's layout.",
                )
            self._host.commit_version(version)
            self._update, self._version, self._torn = None, version, False
            self._host.set_out_of_service(None)

    def abort(self) -> None:
        """Close the open update, if any; the engine stays out of service if a byte was written."""
        with self._lock:
            update, self._update = self._update, None
            if update is not None and self._torn:
                self._host.set_out_of_service(
                    f"weights are torn: the update to version {update.version} ended after {len(update)} of "
                    f"{len(self._live.placements)} tensors; publish a whole update"
                )

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
            yield
            self._torn = True

    def _opened(self, version: int) -> OpenUpdate:
        if self._update is None or self._update.version != version:
            state = "none is open" if self._update is None else f"version {self._update.version} is"
            raise WeightSyncError(f"no update to version {version} is open: {state}", remedy="Begin it first.")
        return self._update

    def _compare(self, index: int, bucket: Bucket | None, expected: str | None) -> None:
        if bucket is None or expected is None:
            state = "never arrived" if bucket is None else "arrived, but has no checksum"
            raise WeightSyncError(f"bucket {index} {state}", remedy="Send all buckets and all their checksums.")
        held = self._live.checksum(bucket)
        if held != expected:
            raise WeightSyncError(
                f"bucket {index} is not what was sent: expected xxh3-128 {expected}, the engine holds {held} in "
                f"{len(bucket.tensors)} tensors from {bucket.tensors[0].name} on",
                remedy="Publish again; if it recurs, check memory and transport of this host.",
            )
