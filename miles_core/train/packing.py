"""Micro-batches: samples of like length side by side, padded on the right, within a token budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def micro_batches(lengths: Sequence[int], order: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Split ``order``, indices into ``lengths``, into micro-batches whose padded size is at most ``max_tokens``.

    Within a micro-batch samples are sorted by length. A sample longer than the budget is alone in its own. Since
    losses are reduced over the whole step, the split never changes a gradient.
    """
    batches: list[list[int]] = []
    longest = 0
    for index in sorted(order, key=lambda i: (lengths[i], i)):
        longest = max(longest, lengths[index])
        if not batches or longest * (len(batches[-1]) + 1) > max_tokens:
            batches.append([])
            longest = lengths[index]
        batches[-1].append(index)
    return batches


def pad_rows(flat: NDArray[np.generic], cu_seqlens: NDArray[np.int64], rows: Sequence[int]) -> NDArray[np.generic]:
    """Rows of a flat array ``[N]`` as ``[len(rows), T]``, zero beyond each row's length."""
    lengths = [int(cu_seqlens[row + 1] - cu_seqlens[row]) for row in rows]
    padded = np.zeros((len(rows), max(lengths)), dtype=flat.dtype)
    for at, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        padded[at, :length] = flat[cu_seqlens[row] : cu_seqlens[row] + length]
    return padded


def scatter_rows(
    flat: NDArray[np.generic], cu_seqlens: NDArray[np.int64], rows: Sequence[int], padded: NDArray[np.generic]
) -> None:
    """The inverse of :func:`pad_rows`: write padded rows back into the flat array."""
    for at, row in enumerate(rows):
        start, end = int(cu_seqlens[row]), int(cu_seqlens[row + 1])
        flat[start:end] = padded[at, : end - start]
