"""Samples that a function made by other means than its session: checked before anything trains on them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from miles_core.errors import RolloutError

if TYPE_CHECKING:
    from miles_core.rollout.budget import Budget
    from miles_core.types import Sample, Status


def checked_sample(
    sample: Sample, status: Status, budget: Budget, *, group_id: str, trajectory_id: str, needs_routing: bool
) -> Sample:
    """The sample as one of this trajectory.

    Raises:
        RolloutError: if it exceeds a budget, or lacks what training needs: logits' temperatures or routing.
    """
    import numpy as np

    generated = np.zeros(len(sample.tokens), np.bool_)
    for turn in sample.turns:
        generated[turn.start : turn.end] = True
    if missing := int((sample.loss_mask.astype(np.bool_) & ~generated).sum()):
        raise RolloutError(
            f"{missing} trained tokens of a sample are in none of its turns, so their temperature is not known",
            remedy="Give each generation a TurnRecord with its start, its end and how it was sampled.",
        )
    if len(sample.tokens) > budget.max_context_tokens or sample.trained_tokens > budget.max_response_tokens:
        raise RolloutError(
            f"a sample has {len(sample.tokens)} tokens, {sample.trained_tokens} of them trained; "
            f"rollout.max_context_tokens is {budget.max_context_tokens}, rollout.max_response_tokens "
            f"{budget.max_response_tokens}",
            remedy="Let the function keep to these budgets, or raise them.",
        )
    if needs_routing and sample.routing is None and status.trainable:
        raise RolloutError(
            "a sample has no routing trace, but train.replay_routing is on",
            remedy="Generate through the episode, or set train.replay_routing = false.",
        )
    return replace(sample, status=status, group_id=group_id, trajectory_id=trajectory_id)
