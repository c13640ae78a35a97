"""The slots of the KV cache: who holds which, what is cached in them, and whose prefix can be reused."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SlotState(IntEnum):
    """A slot is free, holds the tokens of a finished request, or belongs to a running one."""

    FREE = 0
    CACHED = 1
    RUNNING = 2


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The slot whose tokens share the longest prefix with a prompt, and how long that is; slot -1 means none."""

    slot: int
    length: int
    takes_over: bool = False


class SlotTable:
    """Tokens, logprobs ``[slots, length]`` and slot states as arrays, so that a prefix search is a few numpy calls.

    ``computed[slot]`` counts the leading tokens whose keys and values are in the cache. Slots of other weights than
    the present ones are not shared.
    """

    def __init__(self, slots: int) -> None:
        self.size = slots
        self.tokens: NDArray[np.int32] = np.zeros((slots, 0), np.int32)
        self.logprobs: NDArray[np.float32] = np.zeros((slots, 0), np.float32)
        self.computed: NDArray[np.int64] = np.zeros(slots, np.int64)
        self._state: NDArray[np.int8] = np.zeros(slots, np.int8)
        self._shared: NDArray[np.bool_] = np.zeros(slots, np.bool_)
        self._salt: NDArray[np.int64] = np.zeros(slots, np.int64)
        self._retired_at: NDArray[np.int64] = np.zeros(slots, np.int64)
        self._free = list(range(slots))
        self._salts: dict[str | None, int] = {}
        self._clock = 0

    @property
    def cached_tokens(self) -> int:
        """Tokens that finished requests left for reuse."""
        return int(self.computed[self._state == SlotState.CACHED].sum())

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens per slot."""
        present = self.tokens.shape[1]
        if length > present:
            widths = ((0, 0), (0, length - present))
            self.tokens = np.pad(self.tokens, widths)
            self.logprobs = np.pad(self.logprobs, widths)

    def shrink(self) -> None:
        """Give the memory of tokens and logprobs back; call it when no slot runs and no prefix is cached."""
        self.tokens = np.zeros((self.size, 0), np.int32)
        self.logprobs = np.zeros((self.size, 0), np.float32)

    def match(self, ids: NDArray[np.int32], extra_key: str | None) -> PrefixMatch:
        """The longest reusable prefix, at most ``len(ids) - 1`` tokens: the last one must be run for its logits."""
        width = min(len(ids) - 1, self.tokens.shape[1])
        if width <= 0:
            return PrefixMatch(-1, 0)
        usable = self._shared & (self._salt == self._salt_of(extra_key)) & (self.computed > 0)
        candidates = np.flatnonzero(usable & (self.tokens[:, 0] == ids[0]))
        if not len(candidates):
            return PrefixMatch(-1, 0)
        equal = self.tokens[candidates, :width] == ids[:width]
        lengths = np.where(equal.all(1), width, equal.argmin(1))
        lengths = np.minimum(lengths, self.computed[candidates])
        whole = (self._state[candidates] == SlotState.CACHED) & (lengths == self.computed[candidates])
        best = int((2 * lengths + whole).argmax())
        return PrefixMatch(int(candidates[best]), int(lengths[best]), bool(whole[best]))

    def prefix_key(self, slot: int, length: int) -> bytes | int:
        """Equal for slots whose first ``length`` tokens have the same keys and values, bit by bit."""
        # a slot that is not shared may hold tokens of older weights
        return self.tokens[slot, :length].tobytes() if self._shared[slot] else slot

    def take(self, match: PrefixMatch, ids: NDArray[np.int32], extra_key: str | None, *, shared: bool) -> int:
        """A running slot that holds ``ids``: the matched one where it is taken over, else a free or evicted one."""
        if match.takes_over:
            slot = match.slot
        else:
            slot = heapq.heappop(self._free) if self._free else self._evict()
            # a pending copy must not be matched before it has happened
            self.computed[slot] = 0
        self._state[slot] = SlotState.RUNNING
        self._shared[slot] = shared
        self._salt[slot] = self._salt_of(extra_key)
        self.tokens[slot, : len(ids)] = ids
        return slot

    def retire(self, slot: int) -> None:
        """End a running slot: its tokens stay for reuse where they may be shared."""
        if not self._shared[slot]:
            self.release(slot)
            return
        self._state[slot] = SlotState.CACHED
        self._clock += 1
        self._retired_at[slot] = self._clock

    def release(self, slot: int) -> None:
        """Free a slot and forget its tokens."""
        self._state[slot] = SlotState.FREE
        self._shared[slot] = False
        self.computed[slot] = 0
        heapq.heappush(self._free, slot)

    def clear(self) -> None:
        """Forget every cached prefix; running slots go on but are not shared any more."""
        for slot in np.flatnonzero(self._state == SlotState.CACHED):
            self.release(int(slot))
        self._shared[:] = False
        self._salts.clear()

    def _evict(self) -> int:
        cached = np.flatnonzero(self._state == SlotState.CACHED)
        assert len(cached), "there are more slots than running requests"
        return int(cached[self._retired_at[cached].argmin()])

    def _salt_of(self, extra_key: str | None) -> int:
        return self._salts.setdefault(extra_key, len(self._salts))
