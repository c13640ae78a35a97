"""The loss against the rules of its kind, and against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from acme_objectives.dual_clip import DualClip

from miles_core.api import LossBatch, PluginContext, TokenLoss, TokenOutputs
from miles_core.testing import LossSuite


class TestDualClip(LossSuite):
    plugin = "acme-objectives/dual_clip"


def loss_of(ratio: float, advantage: float) -> tuple[TokenLoss, torch.Tensor]:
    """The loss of one token, and the logprob that it depends on."""
    current = torch.tensor([[math.log(ratio)]], requires_grad=True)
    old = torch.zeros(1, 1)
    batch = LossBatch(torch.ones(1, 1, dtype=torch.bool), torch.full((1, 1), advantage), old, old)
    return DualClip(DualClip.Config(), PluginContext()).loss(TokenOutputs(current), batch), current


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "metric"),
    [
        (1.1, 1.0, -1.1, None),
        (2.0, 1.0, -1.28, "clip_fraction"),
        (0.5, -1.0, 0.8, "clip_fraction"),
        (2.0, -1.0, 2.0, None),
        (5.0, -1.0, 3.0, "dual_clip_fraction"),
        (5.0, -2.0, 6.0, "dual_clip_fraction"),
    ],
)
def test_the_loss_of_a_token(ratio: float, advantage: float, expected: float, metric: str | None) -> None:
    result, current = loss_of(ratio, advantage)
    assert result.per_token.item() == pytest.approx(expected, rel=1e-5)
    counted = {name for name, (total, _) in result.metrics.items() if name != "pg_loss" and total.item()}
    assert counted == ({metric} if metric else set())
    result.per_token.sum().backward()
    assert current.grad is not None
    assert bool(current.grad.any()) == (metric is None)


def test_an_absurd_ratio_gives_finite_numbers() -> None:
    result, current = loss_of(1e30, -1.0)
    result.per_token.sum().backward()
    assert torch.isfinite(result.per_token).all()
    assert current.grad is not None
    assert torch.isfinite(current.grad).all()
