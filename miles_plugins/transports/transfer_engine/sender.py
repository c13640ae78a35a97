"""The trainer's end: buckets go straight into the live parameters of all receivers of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from miles_core.api import WeightSyncError
from miles_plugins.transports.transfer_engine.offers import Offer, check_ends, ends_of
from miles_plugins.transports.transfer_engine.parallel import in_parallel
from miles_plugins.transports.transfer_engine.runs import reorder, runs_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from miles_core.api import Bucket, Opening
    from miles_plugins.transports.transfer_engine.endpoint import Endpoint
    from miles_plugins.transports.transfer_engine.runs import Runs


@dataclass(slots=True)
class Target:
    """A receiver; ``lost`` is why it gets no more of this update."""

    who: str
    offer: Offer
    lost: str | None = None


class Sender:
    """Writes the buckets of one update after the other.

    The last payload stays registered, and so alive, until another one comes: a trainer that packs into the same memory
    again registers it once.
    """

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        self._endpoint = endpoint
        self._seconds = seconds
        self._streams: list[list[Target]] = []
        self._payload: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._staging: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._unfinished: list[NDArray[np.uint8]] = []

    def open(self, opening: Opening) -> None:
        """Take the receivers of an update, and look them up.

        Raises:
            WeightSyncError: if what one offers does not fit what it is to get.
        """
        self._streams = [
            list(_targets(number, stream.offers, ends_of(stream.placements)))
            for number, stream in enumerate(opening.streams)
        ]
        self._unfinished.clear()
        targets = [target for stream in self._streams for target in stream if target.offer.addresses]
        for target in targets:
            if target.offer.protocol != self._endpoint.wire.protocol:
                target.lost = f"its end uses {target.offer.protocol}, the trainer's {self._endpoint.wire.protocol}"
        alive = [target for target in targets if target.lost is None]
        answers = in_parallel([partial(self._endpoint.reach, target.offer.session) for target in alive], self._seconds)
        for target, answer in zip(alive, answers, strict=True):
            if not answer:
                within = f" within {self._seconds:g} s" if answer is None else ""
                target.lost = f"its transfer engine at {target.offer.session} did not answer{within}"

    def send(self, bucket: Bucket, payload: memoryview) -> dict[int, str]:
        """Write the bucket into every receiver of its stream; the reasons by receiver where that failed.

        Raises:
            WeightSyncError: if no such stream is open, or the bucket does not fit payload or parameters.
        """
        if not 0 <= bucket.stream < len(self._streams):
            raise WeightSyncError(
                f"bucket {bucket.index} is for stream {bucket.stream}; {len(self._streams)} are open",
                remedy="Open the update first.",
            )
        if payload.nbytes != bucket.nbytes:
            raise WeightSyncError(f"bucket {bucket.index} has {bucket.nbytes} bytes; its payload {payload.nbytes}")
        targets = self._streams[bucket.stream]
        runs = runs_of(bucket.placements, bucket.nbytes)
        ends = runs.ends()
        for target in targets:
            check_ends(ends, target.offer, target.who)
        if runs.lengths:
            self._write([target for target in targets if target.lost is None], runs, self._sources(runs, payload))
        return {number: target.lost for number, target in enumerate(targets) if target.lost is not None}

    def _write(self, targets: Sequence[Target], runs: Runs, sources: Sequence[int]) -> None:
        calls = [partial(self._write_one, target, runs, sources) for target in targets]
        if len(calls) == 1:
            calls[0]()
        else:
            in_parallel(calls)
        if any(target.lost is not None for target in targets):
            # Mooncake reports the first failure, and other writes of the batch may still read this memory.
            self._unfinished += [self._payload, self._staging]

    def _write_one(self, target: Target, runs: Runs, sources: Sequence[int]) -> None:
        bases = target.offer.addresses
        places = [bases[name] + offset for name, offset in zip(runs.parameters, runs.offsets, strict=True)]
        done = self._endpoint.write(target.offer.session, sources, places, runs.lengths)
        if done < len(sources):
            target.lost = (
                f"writing into {target.offer.session} failed after {done} of {len(sources)} writes: it died, stopped "
                "or moved its memory"
            )

    def _sources(self, runs: Runs, payload: memoryview) -> list[int]:
        """The addresses of the runs in registered memory."""
        self._hold(np.frombuffer(payload, np.uint8), runs.staging_bytes)
        reorder(payload, self._staging, runs.reorderings)
        first = np.frombuffer(payload, np.uint8).ctypes.data
        self._endpoint.memory.require(first, runs.payload_bytes, "payload")
        staged = self._staging.ctypes.data - runs.payload_bytes
        return [(first if source < runs.payload_bytes else staged) + source for source in runs.sources]

    def _hold(self, payload: NDArray[np.uint8], staging_bytes: int) -> None:
        if staging_bytes > self._staging.nbytes:
            self._staging = np.empty(staging_bytes, np.uint8)
        if not _within(payload, self._payload):
            self._payload = payload
        self._endpoint.memory.hold(
            (part.ctypes.data, part.nbytes) for part in (self._payload, self._staging) if part.nbytes
        )


def _within(inner: NDArray[np.uint8], outer: NDArray[np.uint8]) -> bool:
    start = outer.ctypes.data
    return start <= inner.ctypes.data and inner.ctypes.data + inner.nbytes <= start + outer.nbytes


def _targets(stream: int, offers: Sequence[Any], ends: dict[str, int]) -> Iterator[Target]:
    for number, data in enumerate(offers):
        who = f"receiver {number} of stream {stream}"
        offer = Offer.from_json(data, who)
        check_ends(ends, offer, f"{who} at {offer.session}")
        yield Target(who, offer)
