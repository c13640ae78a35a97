"""What has arrived of one open update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.errors import WeightSyncError
from miles_core.weights.coverage import filled_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from miles_core.kinds.weight_transports import WeightTransport
    from miles_core.types import Bucket, ParameterTable, Placement
    from miles_core.weights.live import LiveWeights


class OpenUpdate:
    """Each bucket and each box may come once; ``verified`` holds for what has arrived so far.

    ``base`` is the version that the parameters held whole when it began, ``None`` if they did not.
    """

    def __init__(self, version: int, base: int | None, transport: WeightTransport) -> None:
        self.version = version
        self.base = base
        self.transport = transport
        self.verified = False
        self.buckets: dict[int, Bucket] = {}
        self._boxes: set[tuple[str, int]] = set()

    @property
    def boxes(self) -> int:
        """How many have arrived."""
        return len(self._boxes)

    def check(self, bucket: Bucket, live: LiveWeights) -> None:
        """Refuse a bucket that must not be written.

        Raises:
            WeightSyncError: if it came before, repeats a box or does not fit the parameters.
        """
        what = f"bucket {bucket.index} of version {self.version}"
        if bucket.index in self.buckets:
            raise WeightSyncError(f"{what} came twice", remedy="Abort the update and publish again.")
        if not bucket.placements:
            raise WeightSyncError(f"{what} holds no tensors", remedy="Leave empty buckets out.")
        seen = set(self._boxes)
        for placement in bucket.placements:
            live.check(placement)
            if placement.nbytes and _place(placement) in seen:  # where an empty box lies, another one may begin
                raise WeightSyncError(f"{what} repeats tensor {placement.label}", remedy="Send each once per update.")
            seen |= _places((placement,))
        nbytes = sum(placement.nbytes for placement in bucket.placements)
        if bucket.nbytes != nbytes:
            raise WeightSyncError(f"{what} says {bucket.nbytes} bytes; its tensors have {nbytes}")

    def add(self, bucket: Bucket) -> None:
        """Note that a checked bucket is written."""
        self.buckets[bucket.index] = bucket
        self._boxes |= _places(bucket.placements)
        self.verified = False

    def check_whole(self, table: ParameterTable, padding: int) -> None:
        """Make sure that every byte of every parameter has come once, but for ``padding`` bytes.

        Raises:
            WeightSyncError: naming parameters that lack some, or two boxes that overlap.
        """
        came: dict[str, list[Placement]] = {}
        for bucket in self.buckets.values():
            for placement in bucket.placements:
                came.setdefault(placement.parameter, []).append(placement)
        left = {
            row.name: row.nbytes - filled_bytes(row, came.get(row.name, ()))
            for row in table.parameters
            if row.shares is None
        }
        lacking = {name: nbytes for name, nbytes in left.items() if nbytes}
        if sum(lacking.values()) != padding:
            named = ", ".join(f"{name} ({nbytes} bytes)" for name, nbytes in list(lacking.items())[:3])
            raise WeightSyncError(
                f"version {self.version} fills all but {padding} bytes of this engine's parameters by plan; "
                f"{sum(lacking.values())} lack in {len(lacking)} of them: {named or 'none'}",
                remedy="Plan again from this engine's layout.",
            )


def _places(placements: Iterable[Placement]) -> set[tuple[str, int]]:
    return {_place(placement) for placement in placements if placement.nbytes}


def _place(placement: Placement) -> tuple[str, int]:
    return placement.parameter, placement.offset
