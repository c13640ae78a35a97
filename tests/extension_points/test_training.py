"""What the trainer takes by import path, through its own service: estimator, losses, correction, reduction, bridge."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from miles_core.app.trainer import TrainerService
from miles_core.app.trainer_client import optimizer_settings
from miles_core.train.batching import TrainStep
from miles_core.types import Group

from .conftest import QUICKSTART

pytestmark = pytest.mark.anyio


@pytest.fixture
def train(wired, play) -> Callable[..., object]:
    """Metrics of one step on two groups of the quickstart."""

    async def run(*overrides: str) -> dict[str, float]:
        torch.set_num_threads(1)
        wiring = wired("objective.epochs=1", "objective.mini_batches=1", *overrides)
        groups: list[Group] = [await play(wiring, "get c", text) for text in ("3", "44")]
        service = TrainerService(wiring)
        try:
            service.begin(optimizer_settings(wiring.config.optimizer))
            tokens = sum(s.trained_tokens for g in groups for t in g.trajectories for s in t.samples)
            return service.train_step(TrainStep(0, tuple(groups), tokens, 1e-3))
        finally:
            service.close()

    return run


ESTIMATOR = "import numpy as np\ndef ones(batch): return np.ones(len(batch.tokens), np.float32)\n"


async def test_an_estimator(theirs, train) -> None:
    module = theirs(ESTIMATOR)
    metrics = await train(f"advantage.use={module}:ones")
    assert metrics["train/pg_loss"] == pytest.approx(-1, abs=1e-5), "the ratio is 1, so the loss is minus the advantage"


async def test_a_loss(theirs, train) -> None:
    module = theirs(
        """
from miles_core.api import TokenLoss

def three(outputs, batch):
    return TokenLoss(outputs.logprobs * 0 + 3, batch.mask, {"mine": (batch.mask.sum() * 3, batch.mask.sum())})
"""
    )
    metrics = await train(f'losses=[{{use="{module}:three", weight=0.5}}]')
    assert metrics["train/loss"] == pytest.approx(1.5)
    assert metrics["train/mine"] == 3


async def test_a_correction(theirs, train) -> None:
    module = theirs(
        ESTIMATOR
        + """
from miles_core.api import Correction

def factor(batch, *, by: float):
    return Correction(np.full(len(batch.tokens), by, np.float32), metrics={"seen": batch.num_samples})
"""
    )
    metrics = await train(f"advantage.use={module}:ones", f'correction={{use="{module}:factor", by=0.25}}')
    assert metrics["train/loss"] == pytest.approx(-0.25, abs=1e-5)
    assert metrics["train/correction_weight"] == 0.25
    assert metrics["train/correction/seen"] == 4


async def test_tis_by_name(theirs, train) -> None:
    """The scripted engine says a logprob of -1 for each token; the model's are other ones."""
    metrics = await train("correction.use=tis", "correction.cap=0.5")
    assert 0 < metrics["train/correction_weight"] <= 0.5


async def test_a_reduction(theirs, train) -> None:
    module = theirs(
        ESTIMATOR + "\ndef first_token(batch, mask): return (np.cumsum(mask) == 1).astype(np.float32) * 7\n"
    )
    metrics = await train(f"advantage.use={module}:ones", f"objective.reduction={module}:first_token")
    assert metrics["train/loss"] == pytest.approx(-7, rel=1e-5)


def test_a_bridge(theirs, wired) -> None:
    module = theirs(
        """
from miles_core.api import RoutingSpec

class Bridge:
    mapping = None
    def __init__(self, config, context): ...
    def routing_spec(self, hf_config): return RoutingSpec(9, (4,), hf_config["vocab_size"], 1)
    def build(self, model_path, *, dtype, init, seed): ...
    def replay_points(self, model): return ()
"""
    )
    model = wired(f"model.bridge={module}:Bridge").model
    vocabulary = json.loads((QUICKSTART / "model/config.json").read_text())["vocab_size"]
    assert model.routing is not None
    assert (model.routing.layer_ids, model.routing.num_experts) == ((4,), vocabulary)
