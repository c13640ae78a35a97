"""Expert weights for given experts, as the routers of transformers compute them for their own choice.

All take router logits ``[tokens, experts]`` and int64 ``indices`` ``[tokens, top_k]`` and return ``[tokens, top_k]``.
The order of operations and the types are the routers', so that the bits are too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def softmax_weights(
    logits: torch.Tensor, indices: torch.Tensor, *, renormalise: bool, keep_float32: bool = False
) -> torch.Tensor:
    """Softmax over all experts in float32, gather, divide by the sum if ``renormalise``.

    The result has the type of the logits unless ``keep_float32``.
    """
    import torch

    weights = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(-1, indices)
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights if keep_float32 else weights.to(logits.dtype)


def sigmoid_weights(logits: torch.Tensor, indices: torch.Tensor, *, renormalise: bool, scale: float) -> torch.Tensor:
    """Sigmoid of each logit, gather, divide by the sum if ``renormalise``, times ``scale`` (DeepSeek-V3).

    The correction bias plays no part: it chooses experts and does not weigh them.
    """
    weights = logits.sigmoid().gather(-1, indices)
    if renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * scale


def chosen_softmax_weights(logits: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Gather, then softmax over the chosen experts in the type of the logits (gpt-oss)."""
    return logits.gather(-1, indices).softmax(-1)
