"""Per-slot state of running requests, as columns, so that a step costs the same numpy calls for 1 or 256 rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from miles_core.types.generation import GREEDY_BELOW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from miles_core.engine.embedded.request import ActiveRequest

NO_TOKEN = -1
# SGLang ends a request two tokens before the context does
_RESERVED = 2


class Columns:
    """Lengths, limits and sampling options ``[slots]``; ``stops`` ``[slots, W]`` is padded with ``NO_TOKEN``.

    ``length`` counts prompt and output tokens, ``limit`` is the length at which a request must end. ``ignore_eos``
    switches every stop token off as an end, not only the model's own, but ``min_new`` keeps them all from being drawn.
    """

    def __init__(self, slots: int) -> None:
        self.length: NDArray[np.int64] = np.zeros(slots, np.int64)
        self.prompt: NDArray[np.int64] = np.zeros(slots, np.int64)
        self.limit: NDArray[np.int64] = np.zeros(slots, np.int64)
        self.min_new: NDArray[np.int64] = np.zeros(slots, np.int64)
        self.ignore_eos: NDArray[np.bool_] = np.zeros(slots, np.bool_)
        self.seed: NDArray[np.int64] = np.zeros(slots, np.int64)
        self.temperature: NDArray[np.float32] = np.ones(slots, np.float32)
        self.greedy: NDArray[np.bool_] = np.zeros(slots, np.bool_)
        self.top_p: NDArray[np.float32] = np.ones(slots, np.float32)
        self.top_k: NDArray[np.int64] = np.zeros(slots, np.int64)
        self.min_p: NDArray[np.float32] = np.zeros(slots, np.float32)
        self.restricted: NDArray[np.bool_] = np.zeros(slots, np.bool_)
        self.stops: NDArray[np.int64] = np.full((slots, 4), NO_TOKEN, np.int64)

    def set(self, request: ActiveRequest, *, context_length: int, vocab_size: int, eos: tuple[int, ...]) -> None:
        """Fill the columns of a request's slot."""
        slot, options = request.slot, request.spec.sampling
        prompt = len(request.spec.prompt)
        outputs = 0 if request.progress is None else len(request.progress.output_ids)
        self.prompt[slot] = prompt
        self.length[slot] = prompt + outputs
        room = max(0, context_length - _RESERVED - prompt)
        self.limit[slot] = prompt + (room if options.max_new_tokens is None else min(options.max_new_tokens, room))
        self.min_new[slot] = min(options.min_new_tokens, context_length)
        self.ignore_eos[slot] = options.ignore_eos
        self.seed[slot] = request.seed
        is_zero = options.temperature < GREEDY_BELOW
        self.greedy[slot] = is_zero or options.top_k == 1
        self.temperature[slot] = 1.0 if is_zero else options.temperature
        self.top_p[slot] = options.top_p
        self.top_k[slot] = min(options.top_k, vocab_size)
        self.min_p[slot] = options.min_p
        self.restricted[slot] = options.top_p < 1 or options.top_k < vocab_size or options.min_p > 0
        self._set_stops(slot, (*eos, *options.stop_token_ids))

    def _set_stops(self, slot: int, ids: tuple[int, ...]) -> None:
        width = self.stops.shape[1]
        if len(ids) > width:
            wider = ((0, 0), (0, len(ids) - width))
            self.stops = np.pad(self.stops, wider, constant_values=NO_TOKEN)
        self.stops[slot] = NO_TOKEN
        self.stops[slot, : len(ids)] = ids
