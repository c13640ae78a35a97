"""What has arrived of one open update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.errors import WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from miles_core.types import Bucket, Placement


class OpenUpdate:
    """Each bucket and each tensor may come once; ``verified`` holds for what has arrived so far."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.verified = False
        self.buckets: dict[int, Bucket] = {}
        self._names: set[str] = set()

    def __len__(self) -> int:
        return len(self._names)

    def check(self, bucket: Bucket, placements: Mapping[str, Placement]) -> None:
        """Refuse a bucket that must not be written.

        Raises:
            WeightSyncError: if it came before, repeats a tensor or does not fit ``placements``.
        """
        what = f"bucket {bucket.index} of version {self.version}"
        if bucket.index in self.buckets:
            raise WeightSyncError(f"{what} came twice", remedy="Abort the update and publish again.")
        if not bucket.tensors:
            raise WeightSyncError(f"{what} holds no tensors", remedy="Leave empty buckets out.")
        seen = set(self._names)
        for spec in bucket.tensors:
            mine = placements.get(spec.name)
            if mine is None or mine.tensor != spec:
                expected = f"{mine.tensor}" if mine else "one of this engine's tensors"
                raise WeightSyncError(
                    f"{what} does not fit: expected {expected}, got {spec}",
                    remedy="Plan again from this engine's layout.",
                )
            if spec.name in seen:
                raise WeightSyncError(f"{what} repeats tensor {spec.name}", remedy="Send each tensor once per update.")
            seen.add(spec.name)
        nbytes = sum(spec.nbytes for spec in bucket.tensors)
        if bucket.nbytes != nbytes:
            raise WeightSyncError(f"{what} says {bucket.nbytes} bytes; its tensors have {nbytes}")

    def add(self, bucket: Bucket) -> None:
        """Note that a checked bucket is written."""
        self.buckets[bucket.index] = bucket
        self._names.update(spec.name for spec in bucket.tensors)
        self.verified = False

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that have not arrived."""
        return [name for name in names if name not in self._names]
