"""Drawing the next token of every row of a batch at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from miles_core.engine.embedded.columns import NO_TOKEN
from miles_core.engine.embedded.noise import gumbel
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from miles_core.engine.embedded.columns import Columns


def sample(
    logits: torch.Tensor, columns: Columns, slots: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Token ids and their logprobs ``[B]`` from ``logits`` ``[B, V]`` of the rows in ``slots``.

    Logprobs are those of ``logits / temperature`` without the stop tokens that ``min_new_tokens`` forbids, before
    top-p, top-k and min-p. As in SGLang, they are those of the raw logits where all rows are greedy. Sampling is
    Gumbel-max over noise that only the row's seed and position decide.

    Raises:
        EngineError: if a logit is NaN, which means that the weights are broken.
    """
    greedy = columns.greedy[slots]
    scaled = logits.float()
    if not greedy.all():
        scaled = scaled / torch.from_numpy(columns.temperature[slots])[:, None]
    logprobs = _without_early_stops(scaled, columns, slots).log_softmax(-1)
    scores = _restricted(logprobs, columns, slots)
    if not greedy.all():
        scores = scores + _noise(columns, slots, greedy, logits.shape[-1])
    ids = scores.argmax(-1)
    chosen = logprobs.gather(-1, ids[:, None])[:, 0]
    if not bool(chosen.isfinite().all()):
        raise EngineError(
            "the model's logits are not finite",
            remedy="Check the trainer's loss and the last weight update for NaN, then restart the engine.",
        )
    return ids.numpy(), chosen.numpy()


def sample_each(
    logits: torch.Tensor, columns: Columns, slots: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """As :func:`sample`, one row at a time: no kernel can make a row's bits depend on its neighbours."""
    rows = [sample(logits[row : row + 1], columns, slots[row : row + 1]) for row in range(len(slots))]
    ids, logprobs = zip(*rows, strict=True)
    return np.concatenate(ids), np.concatenate(logprobs)


def _noise(columns: Columns, slots: NDArray[np.int64], greedy: NDArray[np.bool_], vocab_size: int) -> torch.Tensor:
    positions = columns.length[slots] - columns.prompt[slots]
    noise = gumbel(torch.from_numpy(columns.seed[slots]), torch.from_numpy(positions), vocab_size)
    noise[torch.from_numpy(greedy)] = 0.0
    return noise


def _without_early_stops(scaled: torch.Tensor, columns: Columns, slots: NDArray[np.int64]) -> torch.Tensor:
    unstoppable = np.flatnonzero(columns.length[slots] - columns.prompt[slots] < columns.min_new[slots])
    if not len(unstoppable):
        return scaled
    scaled = scaled.clone()
    for row in unstoppable:
        stops = np.unique(columns.stops[slots[row]])
        stops = stops[stops != NO_TOKEN]
        # where every token stops there is no other to draw
        if len(stops) < scaled.shape[-1]:
            scaled[int(row), torch.from_numpy(stops)] = -torch.inf
    return scaled


def _restricted(logprobs: torch.Tensor, columns: Columns, slots: NDArray[np.int64]) -> torch.Tensor:
    restricted = np.flatnonzero(columns.restricted[slots])
    if not len(restricted):
        return logprobs
    rows = torch.from_numpy(restricted)
    scores = logprobs.clone()
    scores[rows] = _restrict(scores[rows], columns, slots[restricted])
    return scores


def _restrict(scores: torch.Tensor, columns: Columns, slots: NDArray[np.int64]) -> torch.Tensor:
    """Top-k, top-p and min-p applied jointly to the sorted probabilities, as SGLang's torch backend does."""
    ordered, order = scores.softmax(-1).sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    drop = before > torch.from_numpy(columns.top_p[slots])[:, None]
    drop |= torch.arange(scores.shape[-1]) >= torch.from_numpy(columns.top_k[slots])[:, None]
    drop |= ordered < ordered[:, :1] * torch.from_numpy(columns.min_p[slots])[:, None]
    return scores.masked_fill(torch.zeros_like(drop).scatter_(-1, order, drop), -torch.inf)
