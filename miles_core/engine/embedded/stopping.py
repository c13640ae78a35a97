"""When a generation ends by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from miles_core.engine.embedded.columns import Columns


def eos_token_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """The ids that end a sequence by the model's generation config and by the tokenizer."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({int(token) for token in [*ids, tokenizer.eos_token_id] if token is not None}))


def token_endings(
    ids: NDArray[np.int64], columns: Columns, slots: NDArray[np.int64]
) -> list[tuple[int, dict[str, Any]]]:
    """``(slot, finish_reason)`` of the rows that a stop token or the length limit ends, after ``ids`` were appended.

    As in SGLang, the limit is looked at first: a stop token sampled exactly there reports ``length``.
    """
    stopped = (columns.stops[slots] == ids[:, None]).any(1)
    full = columns.length[slots] >= columns.limit[slots]
    endings: list[tuple[int, dict[str, Any]]] = []
    for row in np.flatnonzero(stopped | full):
        slot = int(slots[row])
        if full[row]:
            length = int(columns.length[slot] - columns.prompt[slot])
            endings.append((slot, {"type": "length", "length": length}))
        else:
            endings.append((slot, {"type": "stop", "matched": int(ids[row])}))
    return endings


def matched_stop(tokenizer: Any, output_ids: NDArray[np.int32], stops: Sequence[str]) -> str | None:
    """The first of ``stops`` that the end of the output holds.

    Only as many last tokens are decoded as the longest string has bytes, plus one: a token is at least one byte.
    """
    tail = 1 + max(len(stop.encode()) for stop in stops)
    text = tokenizer.decode(output_ids[-tail:].tolist())
    return next((stop for stop in stops if stop in text), None)
