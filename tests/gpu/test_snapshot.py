"""A snapshot is in the CPU's memory; from it training goes on, on a GPU and elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from miles_core.train.torch_backend import TorchBackend

from ..train.resumed import train, trainer_of


def state(backend: TorchBackend) -> dict[str, torch.Tensor]:
    """Weights and moments, on the CPU."""
    assert backend._optimizer is not None
    tensors = dict(backend.parameters())
    for name, parameter in backend.model.named_parameters():
        tensors |= {f"{name}.{moment}": value for moment, value in backend._optimizer.state[parameter].items()}
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


@pytest.mark.parametrize("dense", [False, True], ids=["moe", "dense"])
def test_training_goes_on_from_a_snapshot(
    make_backend: Callable[..., TorchBackend], tmp_path: Path, dense: bool
) -> None:
    backend = make_backend(device="cuda", dense=dense)
    backend.snapshot()(tmp_path / "step-0")
    trainer = trainer_of(backend)
    train(trainer, range(2))
    taken, snapshot = state(backend), backend.snapshot()
    assert {tensor.device.type for tensor in snapshot._weights.values()} == {"cpu"}
    drawn = torch.rand(3, device="cuda")
    expected = train(trainer, range(2, 4))
    snapshot(tmp_path / "step-2")
    for device in ("cuda", "cpu"):
        other = make_backend(device=device, dense=dense, seed=1)
        resumed = trainer_of(other, tmp_path / "step-0")
        other.restore(tmp_path / "step-2")
        restored = state(other)
        assert restored.keys() == taken.keys()
        assert all(torch.equal(restored[name], tensor) for name, tensor in taken.items())
        assert torch.equal(torch.rand(3, device="cuda"), drawn), "the GPU's random numbers go on too"
        for wanted, got in zip(expected, train(resumed, range(2, 4)), strict=True):
            assert got == pytest.approx(wanted, rel=1e-2, abs=1e-3)
