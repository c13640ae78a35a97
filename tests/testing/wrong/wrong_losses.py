"""Losses that break one rule each."""

from __future__ import annotations

import torch

from miles_core.api import TokenLoss
from miles_core.testing import LossSuite


class Right:
    """A clamped policy gradient."""

    needs = ()

    def __init__(self, config, context):
        pass

    def loss(self, outputs, batch):
        ratio = (outputs.logprobs - batch.old_logprobs).clamp(-5, 5).exp()
        return self.made(-ratio * batch.advantages, outputs, batch)

    def made(self, per_token, outputs, batch):
        total = torch.where(batch.mask, per_token.detach(), 0.0).sum()
        return TokenLoss(per_token, batch.mask, {"pg_loss": (total, batch.mask.sum())})


class Reducing(Right):
    """Takes the mean itself."""

    def made(self, per_token, outputs, batch):
        return TokenLoss(per_token.mean(), batch.mask)


class Everywhere(Right):
    """Trains prompts too."""

    def made(self, per_token, outputs, batch):
        return TokenLoss(per_token, torch.ones_like(batch.mask))


class Exploding(Right):
    """Has an unbounded ratio."""

    def loss(self, outputs, batch):
        ratio = (outputs.logprobs - batch.old_logprobs).exp()
        return TokenLoss(-ratio * batch.advantages, batch.mask)


class Centred(Right):
    """Takes off the mean over the batch."""

    def made(self, per_token, outputs, batch):
        trained = torch.where(batch.mask, per_token, 0.0)
        return TokenLoss(per_token - trained.sum() / batch.mask.sum().clamp(min=1), batch.mask)


class Means(Right):
    """Reports means."""

    def made(self, per_token, outputs, batch):
        (total, count), one = super().made(per_token, outputs, batch).metrics["pg_loss"], torch.tensor(1)
        return TokenLoss(per_token, batch.mask, {"pg_loss": (total / count, one)})


class Padded(Right):
    """Takes off the mean of each row, padding included."""

    def made(self, per_token, outputs, batch):
        return TokenLoss(per_token - per_token.mean(1, keepdim=True), batch.mask)


class Undeclared(Right):
    """Reads the entropy where there is one."""

    def made(self, per_token, outputs, batch):
        bonus = 0.0 if outputs.entropy is None else 0.01 * outputs.entropy
        return TokenLoss(per_token - bonus, batch.mask)


class TestRight(LossSuite):
    plugin = Right
    breaks = ()


class TestReducing(LossSuite):
    plugin = Reducing
    breaks = ("returns_a_value_per_token",)
    ruins = True


class TestEverywhere(LossSuite):
    plugin = Everywhere
    breaks = ("trains_no_token_outside_the_mask",)


class TestExploding(LossSuite):
    plugin = Exploding
    breaks = ("value_and_gradient_are_always_finite",)


class TestCentred(LossSuite):
    plugin = Centred
    breaks = ("rows_do_not_mix",)


class TestMeans(LossSuite):
    plugin = Means
    breaks = ("metrics_add_up",)


class TestPadded(LossSuite):
    plugin = Padded
    breaks = ("masked_tokens_change_nothing",)


class TestUndeclared(LossSuite):
    plugin = Undeclared
    breaks = ("reads_only_what_it_needs",)
