"""Attention masks over slots, in the form that a model's attention implementation takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from miles_core.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FULL, _SLIDING = "full_attention", "sliding_attention"


class AttentionMasks:
    """Makes the masks of one model, for full attention or for layers that take turns with a sliding window.

    Raises:
        EngineError: for a model whose attention this cannot mask.
    """

    def __init__(self, model: Any, context_length: int) -> None:
        config = model.config.get_text_config()
        _check_implementation(config._attn_implementation)
        self._additive = config._attn_implementation == "eager"
        self._dtype: torch.dtype = model.dtype
        self._window = _sliding_window(config, context_length)

    def __call__(self, positions: NDArray[np.int64], length: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """What tokens at ``positions`` ``[B, T]`` see of the first ``length``: ``[B, 1, T, length]``.

        By layer type if the model has layers with a sliding window.
        """
        query, key = torch.from_numpy(positions)[:, None, :, None], torch.arange(length)
        causal = key <= query
        if self._window is None:
            return self._form(causal)
        return {_FULL: self._form(causal), _SLIDING: self._form(causal & (key > query - self._window))}

    def _form(self, visible: torch.Tensor) -> torch.Tensor:
        """As it is for sdpa; for eager attention, which adds its mask to the scores, in numbers of the model's type."""
        if not self._additive:
            return visible
        hidden = torch.finfo(self._dtype).min
        return torch.zeros(visible.shape, dtype=self._dtype).masked_fill_(~visible, hidden)


def _check_implementation(implementation: str | None) -> None:
    if implementation not in ("sdpa", "eager"):
        raise EngineError(
            f"the embedded engine needs attention implementation 'sdpa' or 'eager'; the model uses {implementation!r}",
            remedy='Build the model with attn_implementation="sdpa".',
        )


def _sliding_window(config: Any, context_length: int) -> int | None:
    """The window of the layers that have one; ``None`` if every layer sees all of the context."""
    window: int | None = getattr(config, "sliding_window", None)
    types = set(getattr(config, "layer_types", None) or ())
    other = sorted(types - {_FULL, _SLIDING})
    if not other and _SLIDING in types and window is not None:
        return window
    if not other and _SLIDING not in types and (window is None or window >= context_length):
        return None
    raise EngineError(
        "the embedded engine serves layers of full attention, and of sliding attention where config.json has "
        f"layer_types; the model has {', '.join(other) or f'a window of {window} tokens and no such layers'}",
        remedy="Serve this model with SGLang, or keep the context length within the window.",
    )
