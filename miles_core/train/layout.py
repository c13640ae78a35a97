"""Where the tokens of a micro-batch lie in the model's input: one row per sample, or all samples in one row."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from miles_core.train.batching import temperatures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from miles_core.types import Sample


@dataclass(frozen=True, eq=False)
class InputLayout:
    """The input of one micro-batch, ``[rows, width]``; a sample feeds all its tokens but the last.

    Arrays of length N run over the fed tokens, sample by sample, in order of position. ``cells`` int64 ``[N]`` are
    their places in the flat input, and ``None`` where they fill it in order. ``outputs`` int64 ``[N]`` are the places,
    in flat ``[B, T]``, of what is said about the token that follows each. ``positions`` int64 ``[rows, width]`` is
    given where samples share a row: it starts again with each sample, which keeps attention within samples.
    """

    shape: tuple[int, int]
    cells: torch.Tensor | None
    outputs: torch.Tensor
    output_shape: tuple[int, int]
    positions: torch.Tensor | None

    @property
    def fed(self) -> int:
        """N, the number of fed tokens."""
        return len(self.outputs)

    @property
    def spans(self) -> list[slice]:
        """Where the fed tokens of each sample that has some lie in arrays ``[N]``."""
        starts = np.flatnonzero(self.outputs.numpy() % self.output_shape[1] == 1).tolist()
        return [slice(start, stop) for start, stop in pairwise([*starts, self.fed])]

    def place(self, values: NDArray[Any], padding: NDArray[Any]) -> NDArray[Any]:
        """Put values ``[N, ...]`` into their cells ``[rows * width, ...]``; ``padding`` fills the others, in order."""
        if self.cells is None:
            return values
        cells = self.cells.numpy()
        placed = np.empty((self.shape[0] * self.shape[1], *values.shape[1:]), values.dtype)
        free = np.ones(len(placed), np.bool_)
        free[cells] = False
        placed[cells] = values
        placed[free] = padding
        return placed

    def place_tokens(self, values: NDArray[Any], padding: int) -> torch.Tensor:
        """Values ``[N]`` as the model's input ``[rows, width]``."""
        return torch.from_numpy(self.place(values, np.asarray(padding, values.dtype)).reshape(self.shape))

    def by_sample(self, values: torch.Tensor) -> torch.Tensor:
        """Values of all cells ``[rows * width]`` as ``[B, T]``, each about the token that follows; 0 elsewhere."""
        picked = values if self.cells is None else values[self.cells.to(values.device)]
        rows, width = self.output_shape
        places = self.outputs.to(values.device)
        return values.new_zeros(rows * width).index_copy(0, places, picked).view(rows, width)


def padded_layout(lengths: Sequence[int]) -> InputLayout:
    """One row per sample, padded on the right: causal attention needs no mask to hide what comes later."""
    counts, starts = _fed(lengths)
    width = int(counts.max())
    at = np.arange(counts.sum()) + np.repeat(width * np.arange(len(counts)) - starts, counts)
    full = bool((counts == width).all())
    return InputLayout(
        (len(counts), width), None if full else torch.from_numpy(at), *_outputs(counts, starts), positions=None
    )


def packed_layout(lengths: Sequence[int]) -> InputLayout:
    """All samples in one row, one after the other."""
    counts, starts = _fed(lengths)
    positions = torch.from_numpy(np.arange(counts.sum()) - np.repeat(starts, counts))[None]
    return InputLayout((1, int(counts.sum())), None, *_outputs(counts, starts), positions=positions)


@dataclass(frozen=True, eq=False)
class FedTokens:
    """Fed ``tokens`` and the ``targets`` after them, int64 ``[N]``; the targets' ``temperatures``, float32 ``[N]``."""

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    temperatures: NDArray[np.float32]


def fed_tokens(samples: Sequence[Sample]) -> FedTokens:
    """The fed tokens of a micro-batch, the tokens that follow them and the temperatures of those."""
    return FedTokens(
        np.concatenate([sample.tokens[:-1] for sample in samples]).astype(np.int64),
        np.concatenate([sample.tokens[1:] for sample in samples]).astype(np.int64),
        np.concatenate([temperatures(sample)[1:] for sample in samples]),
    )


def _fed(lengths: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Fed tokens per sample, and how many come before each sample's first."""
    counts = np.maximum(np.asarray(lengths, np.int64) - 1, 0)
    return counts, np.cumsum(counts) - counts


def _outputs(counts: NDArray[np.int64], starts: NDArray[np.int64]) -> tuple[torch.Tensor, tuple[int, int]]:
    width = int(counts.max()) + 1
    places = np.arange(counts.sum()) + np.repeat(1 + width * np.arange(len(counts)) - starts, counts)
    return torch.from_numpy(places), (len(counts), width)
