"""The clipped loss in its four quadrants, its KL, and extreme ratios."""

from __future__ import annotations

import math

import pytest
import torch

from miles_core.kinds.base import PluginContext
from miles_core.kinds.losses import LossBatch, TokenOutputs
from miles_plugins.losses.ppo_clip import PpoClip, PpoClipConfig


def run(current: float, old: float, advantage: float, reference: float | None = None, **options):
    logprobs = torch.tensor([[current]], requires_grad=True)
    batch = LossBatch(
        mask=torch.ones(1, 1, dtype=torch.bool),
        advantages=torch.tensor([[advantage]]),
        old_logprobs=torch.tensor([[old]]),
        rollout_logprobs=torch.tensor([[old]]),
        reference_logprobs=None if reference is None else torch.tensor([[reference]]),
    )
    result = PpoClip(PpoClipConfig(**options), PluginContext()).loss(TokenOutputs(logprobs), batch)
    result.per_token.sum().backward()
    assert logprobs.grad is not None
    return float(result.per_token.detach()), float(logprobs.grad), {k: float(v) for k, (v, _) in result.metrics.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [(1.5, 1, -1.28, 1), (0.5, 1, -0.5, 0), (1.5, -1, 1.5, 0), (0.5, -1, 0.8, 1), (1.0, 1, -1.0, 0)],
)
def test_only_two_quadrants_clip(ratio: float, advantage: float, loss: float, clipped: int) -> None:
    value, gradient, metrics = run(math.log(ratio), 0.0, advantage)
    assert value == pytest.approx(loss, abs=1e-6)
    assert metrics["clip_fraction"] == clipped
    assert (gradient == 0) == bool(clipped)


@pytest.mark.parametrize("old", [-1000.0, 998.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_extreme_ratios_have_finite_values_and_gradients(old: float, advantage: float) -> None:
    value, gradient, _ = run(-1.0, old, advantage)
    assert math.isfinite(value)
    assert math.isfinite(gradient)


def test_a_huge_ratio_with_positive_advantage_is_clipped_without_gradient() -> None:
    value, gradient, _ = run(-1.0, -1000.0, 1.0, clip_high=0.2)
    assert value == pytest.approx(-1.2)
    assert gradient == 0.0


@pytest.mark.parametrize(("current", "reference", "k3"), [(-1.0, -1.5, 0.10653066), (-0.1, -8.0, 6.9003707)])
def test_the_kl_is_the_k3_estimate_with_the_right_sign(current: float, reference: float, k3: float) -> None:
    value, _, metrics = run(current, current, 0.0, reference, kl_coefficient=0.5)
    assert metrics["kl"] == pytest.approx(k3, rel=1e-5)
    assert value == pytest.approx(0.5 * k3, rel=1e-5)


def test_the_reference_is_needed_only_with_a_kl_coefficient() -> None:
    assert PpoClip(PpoClipConfig(), PluginContext()).needs == ()
    assert PpoClip(PpoClipConfig(kl_coefficient=0.1), PluginContext()).needs == ("reference_logprobs",)
