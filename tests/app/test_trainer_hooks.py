"""The hooks of plugins that act in the trainer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from miles_core.app.trainer_hooks import TrainerHooks
from miles_core.errors import PluginError
from miles_core.kinds.hooks import TrainerHandle
from miles_core.plugins.lifecycle.hooks import Hooks
from miles_core.plugins.lifecycle.implementations import SPECS, Implementation
from miles_core.train.batching import make_batch

BATCH = make_batch([], [], [], 1)


class Backend:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(1, 1)


def hooks(backend: Any, **functions: Any) -> TrainerHooks:
    made = [Implementation(name, function, SPECS[name], "acme 1.0") for name, function in functions.items()]
    return TrainerHooks(Hooks(made), TrainerHandle(backend))


def test_the_model_may_be_changed_in_place() -> None:
    def zero(trainer: TrainerHandle, batch: object) -> None:
        torch.nn.init.zeros_(trainer.model.weight)

    backend = Backend()
    acting = hooks(
        backend,
        miles_trainer_built=lambda trainer: setattr(trainer.model.weight, "requires_grad", False),
        miles_before_logprobs=zero,
        miles_before_train_step=lambda trainer, step: setattr(trainer.backend, "step", step),
    )
    acting.trainer_built()
    acting.before_logprobs(BATCH)
    acting.before_train_step(4)
    assert not backend.model.weight.requires_grad
    assert backend.model.weight.item() == 0
    assert backend.step == 4
    assert acting.batch_ready(0, BATCH) is BATCH, "nobody implements it"


def test_a_backend_without_a_module_says_so_by_the_name_of_the_plugin_that_asked() -> None:
    acting = hooks(object(), miles_trainer_built=lambda trainer: trainer.model)
    with pytest.raises(PluginError, match=r"miles_trainer_built\(\) of acme 1.0 failed: .*offers no `model`"):
        acting.trainer_built()


def test_a_batch_that_cannot_be_trained_on_names_the_plugin() -> None:
    acting = hooks(Backend(), miles_batch_ready=lambda step, batch: replace(batch, denominator_tokens=None))
    with pytest.raises(PluginError, match=r"of acme 1.0 returned a batch that cannot be used: denominator_tokens must"):
        acting.batch_ready(0, BATCH)
