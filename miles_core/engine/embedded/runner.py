"""Forward passes of a Hugging Face model over slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from miles_core.engine.embedded.kv_cache import SlotCache, Window
from miles_core.engine.embedded.masks import AttentionMasks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from miles_core.engine.embedded.routing import RoutingRecorder
    from miles_core.engine.embedded.slots import SlotTable


class ModelRunner:
    """Runs tokens of a :class:`SlotTable` through the model, keeping keys, values and routing per slot.

    Raises:
        EngineError: for a model whose attention cannot be masked.
    """

    def __init__(
        self,
        model: Any,
        slots: SlotTable,
        recorder: RoutingRecorder | None,
        context_length: int,
        *,
        deterministic: bool = False,
    ) -> None:
        self._masks = AttentionMasks(model, context_length)
        self._deterministic = deterministic
        self._model = model
        self._slots = slots
        self._recorder = recorder
        self._context_length = context_length
        self._cache = SlotCache()
        self._length = 0

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens in every slot."""
        if length > self._length:
            self._length = min(max(length, 2 * self._length, 64), self._context_length)
            self._slots.reserve(self._length)
            if self._recorder is not None:
                self._recorder.reserve(self._length)

    def release(self) -> None:
        """Give the memory of all slots back; call it when no slot runs and no prefix is cached."""
        self._length = 0
        self._cache.release()
        self._slots.shrink()
        if self._recorder is not None:
            self._recorder.shrink()

    def copy_prefixes(self, sources: NDArray[np.int64], targets: NDArray[np.int64], length: int) -> None:
        """Copy what is cached for the first ``length`` tokens of slots ``sources`` to ``targets``, all at once."""
        self._reserve_cache(int(max(sources.max(), targets.max())), length)
        self._cache.copy_rows(torch.from_numpy(sources), torch.from_numpy(targets), length)
        if self._recorder is not None:
            self._recorder.copy_rows(sources, targets, length)

    def forward(self, slots: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64]) -> torch.Tensor:
        """Run tokens ``starts .. starts + counts`` of each slot; returns the logits ``[B, V]`` after the last of each.

        In deterministic mode each token is a pass of its own, since the bits of a matrix product depend on its number
        of rows. Otherwise rows shorter than the longest are padded on the right with their last token, which is masked
        for all others and stored nowhere.
        """
        if not self._deterministic:
            return self._pass(slots, starts, counts)
        logits: list[torch.Tensor] = []
        row_of: dict[bytes | int, int] = {}
        for row, (slot, start, end) in enumerate(zip(slots, starts, starts + counts, strict=True)):
            twin = row_of.setdefault(self._slots.prefix_key(slot, end), row)
            logits.append(self._one_by_one(slot, start, end) if twin == row else logits[twin])
            if twin != row:
                self.copy_prefixes(slots[[twin]], slots[[row]], end)
                self._slots.computed[slot] = end
        return torch.cat(logits)

    def _one_by_one(self, slot: int, start: int, end: int) -> torch.Tensor:
        one = np.ones(1, np.int64)
        for position in range(start, end):
            logits = self._pass(one * slot, one * position, one)
        return logits

    def _pass(self, slots: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64]) -> torch.Tensor:
        offsets = np.arange(counts.max())
        positions = starts[:, None] + np.minimum(offsets, counts[:, None] - 1)
        real = (offsets < counts[:, None]).ravel()
        window = self._window(slots, positions, real)
        self._cache.window = window
        output = self._model(
            input_ids=torch.from_numpy(self._slots.tokens[slots[:, None], positions]).long(),
            attention_mask=self._masks(positions, window.length),
            position_ids=torch.from_numpy(positions),
            cache=self._cache,
            use_cache=True,
            logits_to_keep=torch.from_numpy(counts - 1)[:, None],
        )
        if self._recorder is not None:
            self._recorder.commit(window.write_slots.numpy(), window.write_positions.numpy(), window.real)
        self._slots.computed[slots] = starts + counts
        logits: torch.Tensor = output.logits[:, 0]
        return logits

    def _window(self, slots: NDArray[np.int64], positions: NDArray[np.int64], real: NDArray[np.bool_]) -> Window:
        length = int(positions.max()) + 1
        self._reserve_cache(int(slots.max()), length)
        write_slots = np.repeat(slots, positions.shape[1])
        padded = not real.all()
        return Window(
            real=torch.from_numpy(np.flatnonzero(real)) if padded else None,
            write_slots=torch.from_numpy(write_slots[real]),
            write_positions=torch.from_numpy(positions.ravel()[real]),
            # strides and alignment of a view differ between slots and after growth, those of a gathered copy do not
            read=torch.from_numpy(slots) if self._deterministic else _as_slice(slots),
            length=length,
        )

    def _reserve_cache(self, highest_slot: int, length: int) -> None:
        self._cache.reserve(highest_slot + 1, length, max_slots=self._slots.size, max_length=self._context_length)


def _as_slice(slots: NDArray[np.int64]) -> torch.Tensor | slice:
    """Neighbouring slots are read as a view, others are gathered."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first + 1 == len(slots) and bool((np.diff(slots) == 1).all()):
        return slice(first, last + 1)
    return torch.from_numpy(slots)
