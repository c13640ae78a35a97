"""Where others may act on a training step: a protocol, so that the trainer knows nothing of plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from miles_core.types import StepBatch


class StepHooks(Protocol):
    """Called in this order in every training step, counted from 0."""

    def batch_ready(self, step: int, batch: StepBatch) -> StepBatch:
        """The batch, or a changed copy of it."""

    def before_logprobs(self, batch: StepBatch) -> None:
        """The forward passes that compute logprobs come next; not called in a step that needs none."""

    def before_train_step(self, step: int) -> None:
        """The first backward pass comes next."""


class _NoHooks:
    def batch_ready(self, step: int, batch: StepBatch) -> StepBatch:
        return batch

    def before_logprobs(self, batch: StepBatch) -> None:
        pass

    def before_train_step(self, step: int) -> None:
        pass


NO_HOOKS: StepHooks = _NoHooks()
"""Nobody acts."""
