"""The learning rate as a function of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LearningRateSchedule:
    """Linear warm-up over ``warmup_steps``, times a factor that is 1 or falls to ``final_fraction``.

    ``decay`` is ``"constant"``, ``"linear"`` or ``"cosine"`` (half a period, Loshchilov & Hutter, 2017). The fall takes
    the ``decay_steps`` first steps, those of the warm-up included; after them the factor stays ``final_fraction``. The
    rate depends on the step alone, so that a resumed run needs no state for it. The warm-up keeps Adam's first
    updates small: with no history they have full size whatever the gradient.
    """

    peak: float
    decay_steps: int | None = None
    warmup_steps: int = 0
    final_fraction: float = 1.0
    decay: str = "constant"

    def __post_init__(self) -> None:
        if self.decay not in ("constant", "linear", "cosine"):
            raise ValueError(f"decay must be constant, linear or cosine; got {self.decay!r}")
        if self.decay != "constant" and self.decay_steps is None:
            raise ValueError(f"decay {self.decay!r} needs decay_steps")

    def at(self, step: int) -> float:
        """The rate of step ``step``, counted from 0."""
        warmup = min(1.0, (step + 1) / (self.warmup_steps + 1))
        return self.peak * warmup * self._factor(step)

    def _factor(self, step: int) -> float:
        if self.decay == "constant" or self.decay_steps is None:
            return 1.0
        fall = 1 - self.final_fraction
        if step >= self.decay_steps:
            return self.final_fraction
        if self.decay == "linear":
            return 1 - fall * step / self.decay_steps
        return self.final_fraction + fall * (1 + math.cos(math.pi * step / self.decay_steps)) / 2
