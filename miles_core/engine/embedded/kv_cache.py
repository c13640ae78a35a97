"""Keys and values of all slots, in the form that Hugging Face attention layers call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Where one forward pass of ``[B, T]`` tokens writes and what it reads.

    ``real`` picks the tokens that are not padding out of the flattened ``[B * T]``; ``None`` means all.
    ``write_slots`` and ``write_positions`` ``[N]`` say where those go. The pass reads the first ``length`` positions
    of the slots ``read`` ``[B]``.
    """

    real: torch.Tensor | None
    write_slots: torch.Tensor
    write_positions: torch.Tensor
    read: torch.Tensor | slice
    length: int


class SlotCache(Cache):
    """Per-layer tensors ``[slots, kv_heads, length, head_dim]`` that grow on demand.

    Layer count, heads, sizes and dtype come from what the model writes first. Set ``window`` before each forward.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.window: Window | None = None
        self._stores: dict[int, list[torch.Tensor]] = {}
        self._slots = 0
        self._length = 0

    def reserve(self, slots: int, length: int, *, max_slots: int, max_length: int) -> None:
        """Make room for at least ``slots`` slots of ``length`` tokens; sizes double up to the maxima."""
        if slots <= self._slots and length <= self._length:
            return
        self._slots = _grown(self._slots, slots, 8, max_slots)
        self._length = _grown(self._length, length, 64, max_length)
        for stores in self._stores.values():
            stores[:] = [self._enlarged(store) for store in stores]

    def release(self) -> None:
        """Give all memory back; what was stored is lost."""
        self._stores.clear()
        self._slots = self._length = 0

    def copy_rows(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None:
        """Copy the first ``length`` positions of slots ``sources`` to ``targets``, all at once.

        Every source is read before any target is written, so a slot may be both.
        """
        for stores in self._stores.values():
            for store in stores:
                store[targets, :, :length] = store[sources, :, :length]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the pass's keys and values, and return all that its rows may attend to."""
        assert self.window is not None, "set the window before the forward pass"
        keys, values = self._layer(layer_idx, key_states, value_states)
        return _exchange(keys, key_states, self.window), _exchange(values, value_states, self.window)

    def _layer(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
        if index not in self._stores:
            # zeros, not empty memory: a masked NaN still poisons attention (0 * NaN)
            self._stores[index] = [
                torch.zeros(self._slots, state.shape[1], self._length, state.shape[3], dtype=state.dtype)
                for state in (keys, values)
            ]
        return self._stores[index]

    def _enlarged(self, store: torch.Tensor) -> torch.Tensor:
        slots, heads, length, size = store.shape
        larger = torch.zeros(self._slots, heads, self._length, size, dtype=store.dtype)
        larger[:slots, :, :length] = store
        return larger


def _exchange(store: torch.Tensor, states: torch.Tensor, window: Window) -> torch.Tensor:
    tokens = states.transpose(1, 2).flatten(0, 1)
    if window.real is not None:
        tokens = tokens[window.real]
    store[window.write_slots, :, window.write_positions] = tokens
    return store[window.read, :, : window.length]


def _grown(current: int, needed: int, floor: int, ceiling: int) -> int:
    if needed <= current:
        return current
    return min(max(needed, 2 * current, floor), ceiling)
