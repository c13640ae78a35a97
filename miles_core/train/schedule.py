"""The learning rate as a function of the step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LearningRateSchedule:
    """Linear warm-up over ``warmup_steps``, times a constant, or a linear decay from 1 to ``final_fraction``.

    The warm-up keeps Adam's first updates small: with no history they have full size whatever the gradient.
    """

    peak: float
    steps: int
    warmup_steps: int = 0
    final_fraction: float = 1.0

    def at(self, step: int) -> float:
        """The rate of step ``step``, counted from 0."""
        warmup = min(1.0, (step + 1) / (self.warmup_steps + 1))
        return self.peak * warmup * (1 - (1 - self.final_fraction) * step / self.steps)
