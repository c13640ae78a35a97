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

    As in SGLang, a stop token that comes exactly at the limit reports ``stop``.
    """
    stopped = (columns.stops[slots] == ids[:, None]).any(1) & ~columns.ignore_eos[slots]
    full = columns.length[slots] >= columns.limit[slots]
    endings: list[tuple[int, dict[str, Any]]] = []
    for row in np.flatnonzero(stopped | full):
        slot = int(slots[row])
        if stopped[row]:
            endings.append((slot, {"type": "stop", "matched": int(ids[row])}))
        else:
            endings.append((slot, {"type": "length", "length": int(columns.length[slot] - columns.prompt[slot])}))
    return endings


def matched_stop(tokenizer: Any, output_ids: NDArray[np.int32], stops: Sequence[str]) -> str | None:
    """The first of ``stops`` that the end of the output holds."""
    text = _tail(tokenizer, output_ids, stops)
    return next((stop for stop in stops if stop in text), None)


def may_become_stop(tokenizer: Any, output_ids: NDArray[np.int32], stops: Sequence[str]) -> bool:
    """Whether the output ends in the beginning of one of ``stops``, which a stream must not show yet."""
    text = _tail(tokenizer, output_ids, stops)
    return any(text.endswith(stop[:length]) for stop in stops for length in range(1, len(stop)))


def _tail(tokenizer: Any, output_ids: NDArray[np.int32], stops: Sequence[str]) -> str:
    """The end of the output's text, long enough for every stop: a token has at least one byte."""
    tail = 1 + max(len(stop.encode()) for stop in stops)
    text: str = tokenizer.decode(output_ids[-tail:].tolist())
    return text
