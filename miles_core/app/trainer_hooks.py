"""The lifecycle hooks that act in the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.train.changed_batch import checked_batch

if TYPE_CHECKING:
    from miles_core.kinds.hooks import TrainerHandle
    from miles_core.plugins.lifecycle.hooks import Hooks
    from miles_core.types import StepBatch


class TrainerHooks:
    """Implements the trainer's ``StepHooks`` by the hooks of plugins."""

    def __init__(self, hooks: Hooks, trainer: TrainerHandle) -> None:
        self._hooks = hooks
        self._trainer = trainer

    def trainer_built(self) -> None:
        """The model is built, and nothing was made of it yet."""
        self._hooks.act("miles_trainer_built", trainer=self._trainer)

    def batch_ready(self, step: int, batch: StepBatch) -> StepBatch:
        """The batch as plugins changed it, one after the other."""
        changed: StepBatch = self._hooks.change("miles_batch_ready", "batch", checked_batch, step=step, batch=batch)
        return changed

    def before_logprobs(self, batch: StepBatch) -> None:
        """The forward passes come next."""
        self._hooks.act("miles_before_logprobs", trainer=self._trainer, batch=batch)

    def before_train_step(self, step: int) -> None:
        """The first backward pass comes next."""
        self._hooks.act("miles_before_train_step", trainer=self._trainer, step=step)
