"""The device of the torch backend; tests/gpu runs what needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from miles_core.errors import ConfigError
from miles_core.train.device import pick_device
from miles_core.train.random_states import RandomStates
from miles_core.train.torch_backend import TorchBackend, TorchBackendConfig

from .conftest import make_sample


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_auto_is_the_cpu_and_cuda_is_refused_with_the_remedy(
    make_backend: Callable[..., TorchBackend],
) -> None:
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"sees no GPU") as caught:
        make_backend(device="cuda")
    assert "train.device = 'cpu'" in str(caught.value)


@pytest.mark.usefixtures("a_gpu")
def test_with_a_gpu_auto_is_the_first_one_and_the_cpu_can_be_asked_for() -> None:
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda", 0)
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.usefixtures("a_gpu")
def test_the_cpu_is_used_where_asked_for_and_for_deterministic_passes(
    make_backend: Callable[..., TorchBackend],
) -> None:
    for options in ({"device": "cpu"}, {"deterministic": True}):
        backend = make_backend(**options)
        outputs = backend.forward([make_sample(8)], replay=True)
        assert {tensor.device.type for tensor in (*backend.parameters().values(), outputs.logprobs)} == {"cpu"}


def test_deterministic_passes_on_a_gpu_are_refused() -> None:
    with pytest.raises(ValidationError, match="deterministic = true needs device = 'cpu'"):
        TorchBackendConfig(device="cuda", deterministic=True)


def test_random_states_of_a_gpu_survive_the_way_through_a_file_and_are_left_out_without_one(tmp_path: Path) -> None:
    states = RandomStates.capture()
    assert states.cuda_state is None
    with_gpu = RandomStates(states.torch_state, states.numpy_state, states.python_state, torch.arange(16).byte())
    read = RandomStates.from_json(with_gpu.to_json())
    assert read.cuda_state is not None
    assert read.cuda_state.tolist() == list(range(16))
    read.apply()
    assert torch.equal(torch.get_rng_state(), states.torch_state)
