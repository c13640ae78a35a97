"""The order of rows, pass after pass: a function of seed and epoch. It knows nothing of files.

Blocks are permuted and cut into windows, and the rows of a window are permuted. So what fits into one window is
shuffled uniformly, more approximately, and no more than a window is ever in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WINDOW_BLOCKS = 16
WINDOW_BYTES = 64 << 20


class Sized(Protocol):
    """A block, as far as an order cares."""

    def __len__(self) -> int:
        """How many rows it holds."""


BlockT = TypeVar("BlockT", bound=Sized)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a walk stands: ``row`` counts the rows taken from the window."""

    epoch: int = 0
    window: int = 0
    row: int = 0


class BlockOrder:
    """In which order blocks, and the rows of a window of blocks, are taken.

    ``block_bytes`` bounds windows: at most ``WINDOW_BLOCKS`` blocks and, beyond one block, ``WINDOW_BYTES``.
    """

    def __init__(self, block_bytes: Sequence[int], *, seed: int, shuffle: bool) -> None:
        self._block_bytes = block_bytes
        self._seed = seed
        self._shuffle = shuffle
        self._cut: tuple[int, list[list[int]]] | None = None

    def windows(self, epoch: int) -> list[list[int]]:
        """The block numbers of an epoch's windows, in order."""
        if self._cut is None or self._cut[0] != epoch:
            self._cut = epoch, self._windows(epoch)
        return self._cut[1]

    def rows(self, epoch: int, window: int, count: int) -> Sequence[int]:
        """The order of the ``count`` rows of a window."""
        if not self._shuffle:
            return range(count)
        # 1 + window, because generators seeded with [seed, epoch] and [seed, epoch, 0] are the same
        order: list[int] = np.random.default_rng([self._seed, epoch, 1 + window]).permutation(count).tolist()
        return order

    def _windows(self, epoch: int) -> list[list[int]]:
        numbers = range(len(self._block_bytes))
        order = np.random.default_rng([self._seed, epoch]).permutation(len(numbers)) if self._shuffle else numbers
        windows: list[list[int]] = []
        filled = 0
        for number in map(int, order):
            size = self._block_bytes[number]
            if not windows or len(windows[-1]) == WINDOW_BLOCKS or filled + size > WINDOW_BYTES:
                windows.append([])
                filled = 0
            windows[-1].append(number)
            filled += size
        return windows


class Window(Generic[BlockT]):
    """The loaded blocks of one window, with the order of their rows."""

    def __init__(self, blocks: list[BlockT], order: Callable[[int], Sequence[int]]) -> None:
        self._blocks = blocks
        self._starts = [0, *accumulate(len(block) for block in blocks)]
        self._order = order(self._starts[-1])

    def __len__(self) -> int:
        return self._starts[-1]

    def at(self, place: int) -> tuple[BlockT, int]:
        """The block of the window's row number ``place``, and the row's index in it."""
        row = self._order[place]
        block = bisect_right(self._starts, row) - 1
        return self._blocks[block], row - self._starts[block]


class Walk(Generic[BlockT]):
    """Takes row after row, epoch after epoch; ``position`` may be set to any that a walk over the same blocks had."""

    def __init__(self, order: BlockOrder, load: Callable[[int], BlockT]) -> None:
        self._order = order
        self._load = load
        self._window: tuple[tuple[int, int], Window[BlockT]] | None = None
        self.position = Position()

    def next(self) -> tuple[int, BlockT, int] | None:
        """The next row as (epoch, block, index in the block); ``None`` if a whole epoch holds no row."""
        ends = 0
        while self.position.row >= len(window := self._loaded()):
            ends += self._next_window()
            if ends > 1:
                return None
        position = self.position
        self.position = Position(position.epoch, position.window, position.row + 1)
        return position.epoch, *window.at(position.row)

    def _next_window(self) -> bool:
        """Step over the end of a window; whether the epoch ended there."""
        epoch, window = self.position.epoch, self.position.window + 1
        ended = window >= len(self._order.windows(epoch))
        self.position = Position(epoch + 1, 0) if ended else Position(epoch, window)
        return ended

    def _loaded(self) -> Window[BlockT]:
        epoch, number = self.position.epoch, self.position.window
        if self._window is None or self._window[0] != (epoch, number):
            self._window = None  # let go of the last window before the next one is read
            blocks = [self._load(block) for block in self._order.windows(epoch)[number]]
            window = Window(blocks, lambda count: self._order.rows(epoch, number, count))
            self._window = (epoch, number), window
        return self._window[1]
