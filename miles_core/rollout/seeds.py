"""Seeds that depend on what is generated, never on the policy version or on timing."""

from __future__ import annotations

import json

import xxhash


def seed_of(*parts: int | str) -> int:
    """A seed in ``[0, 2**31)`` from its parts: (run seed, epoch, task id[, sample, turn]), by xxh3."""
    return xxhash.xxh3_64_intdigest(json.dumps(parts).encode()) >> 33
