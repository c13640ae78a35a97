"""What every prompt must respect, checked by the client before it sends and by the engine before it queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from miles_core.errors import EngineRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

KEPT_BACK = 6
"""A prompt and one token of output must fit into the context less so many tokens, as SGLang demands."""


def usable_context(context_length: int) -> int:
    """The tokens of prompt and output that a server of this context length gives: SGLang keeps six back."""
    return context_length - KEPT_BACK


def check_prompt(ids: Sequence[int] | NDArray[np.int32], *, vocab_size: int, context_length: int) -> None:
    """Refuse a prompt that is empty, has ids outside ``[0, vocab_size)`` or leaves no room for one output token.

    Raises:
        EngineRequestError: says which bound was broken and by what.
    """
    if not len(ids):
        raise EngineRequestError("the prompt is empty", remedy="Send at least one token.")
    low, high = (min(ids), max(ids)) if isinstance(ids, list | tuple) else (int(np.min(ids)), int(np.max(ids)))
    if low < 0 or high >= vocab_size:
        raise EngineRequestError(
            f"token ids must be in [0, {vocab_size}); got {low if low < 0 else high}",
            remedy="Tokenize with the tokenizer of the served model.",
        )
    longest = usable_context(context_length) - 1
    if len(ids) > longest:
        raise EngineRequestError(
            f"a prompt of {len(ids)} tokens leaves no room for output in a context of {context_length}, "
            f"of which engines keep {KEPT_BACK} back",
            remedy=f"Send at most {longest} tokens, or serve with a longer context.",
        )
