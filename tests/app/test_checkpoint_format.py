"""A checkpoint of format 1, written once and kept: later versions must go on from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
import torch

from miles_core.app.resume import load_resumed
from miles_core.kinds.base import PluginContext
from miles_core.kinds.train_backends import ModelSource, OptimizerSettings
from miles_core.rollout.buffer import StepBuffer
from miles_core.rollout.filtering import FilterChain
from miles_core.rollout.scheduler import FillSettings, RolloutScheduler
from miles_core.rollout.tasks import TaskStream
from miles_core.train.torch_backend import TorchBackend, TorchBackendConfig
from miles_plugins.bridges.qwen3 import Qwen3

KEPT = Path(__file__).parent / "format-1"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    return shutil.copytree(KEPT, tmp_path / "run")


class Source:
    at = 0

    def restore(self, state) -> None:
        self.at = state["at"]

    def state(self):
        return {"at": self.at}

    def metrics(self):
        return {}


def test_its_state_data_position_and_buffer_load(run: Path) -> None:
    resumed, saved = load_resumed(run)
    assert saved.warnings == ()
    assert (resumed.state.step, resumed.state.version, resumed.state.seconds) == (2, 2, 3.5)
    assert (resumed.state.first_reward, resumed.state.last_reward) == (0.25, 0.5)
    source = Source()
    scheduler = RolloutScheduler(TaskStream(source), None, FilterChain([]), FillSettings(1))
    scheduler.restore(resumed.rollout["scheduler"])
    assert source.at == 5
    state = scheduler.state()
    assert [pending["task"]["id"] for pending in state["pending"]] == ["t2"]
    assert [group["id"] for group in state["left_over"]] == ["s1-g0"]
    buffer = StepBuffer(2, FilterChain([]), trained=2)
    buffer.restore(resumed.rollout["buffer"])
    step = anyio.run(buffer.get, 2, 2)
    assert step.rewards == [1.0, 0.0]
    assert step.kept[0].trajectories[0].samples[0].logprobs.tolist() == [0, 0, 0, -0.5, -0.25, -0.125]


def test_its_weights_and_optimizer_load(run: Path) -> None:
    path = run / "checkpoints" / "step-2"
    assert json.loads((path / "state" / "manifest.json").read_text())["format"] == 1
    source = ModelSource(str(path), Qwen3(None, PluginContext()), None, init="random", seed=1)
    backend = TorchBackend(TorchBackendConfig(), PluginContext(services={"model_source": source}))
    backend.reset_optimizer(OptimizerSettings(1e-2))
    backend.restore(path)
    total = sum(float(value.detach().double().abs().sum()) for value in backend.parameters().values())
    assert total == pytest.approx(48.36223181942478, rel=1e-12)
    assert {float(state["step"]) for state in backend._optimizer.state.values()} == {1.0}
    assert all(torch.isfinite(state["exp_avg"]).all() for state in backend._optimizer.state.values())
