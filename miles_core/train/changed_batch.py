"""Whether a changed copy of a step's batch can be trained on."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from miles_core.types import StepBatch

_MAY_CHANGE = frozenset(
    {"loss_mask", "rollout_logprobs", "rewards", "group_index", "trajectory_index", "denominator_tokens"}
)


def checked_batch(before: StepBatch, after: object) -> StepBatch:
    """``after``, if it can take the place of ``before``.

    The model is fed from the samples, so tokens, lengths and temperatures must stay; a token that was not trained has
    no logprob, so the loss mask can only lose tokens.

    Raises:
        ValueError: naming the field, with what was expected and what came.
    """
    if not isinstance(after, StepBatch):
        raise ValueError(f"expected a StepBatch, got {type(after).__name__}")
    for field in fields(StepBatch):
        _check_field(field.name, getattr(before, field.name), getattr(after, field.name))
    for name in ("rewards", "rollout_logprobs"):
        if wrong := int((~np.isfinite(getattr(after, name))).sum()):
            raise ValueError(f"{name} has {wrong} values that are not finite")
    if added := int((after.loss_mask & ~before.loss_mask).sum()):
        raise ValueError(f"loss_mask has {added} tokens that were not to be trained; it may only lose some")
    if not after.loss_mask.any():
        raise ValueError("loss_mask leaves no token to train on")
    if after.denominator_tokens < 1:
        raise ValueError(f"denominator_tokens must be 1 or more, got {after.denominator_tokens}")
    return after


def _check_field(name: str, before: object, after: object) -> None:
    if not isinstance(before, np.ndarray):
        if type(after) is not type(before):
            raise ValueError(f"{name} must be {_type(before)}, got {_type(after)}")
        return
    if not isinstance(after, np.ndarray) or (after.shape, after.dtype) != (before.shape, before.dtype):
        got = f"{after.dtype} {list(after.shape)}" if isinstance(after, np.ndarray) else _type(after)
        raise ValueError(f"{name} must be {before.dtype} {list(before.shape)}, got {got}")
    if name not in _MAY_CHANGE and not np.array_equal(before, after):
        raise ValueError(f"{name} must stay as it is; these may change: {', '.join(sorted(_MAY_CHANGE))}")


def _type(value: object) -> str:
    return "None" if value is None else type(value).__name__
