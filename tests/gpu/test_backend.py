"""The torch backend computes on a GPU what it computes on the CPU, and proves the same routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from miles_core.errors import RoutingError
from miles_core.train.torch_backend import TorchBackend

from ..train.conftest import make_sample
from ..train.resumed import train, trainer_of

SAMPLES = [make_sample(length, seed=length, temperature=0.8) for length in (9, 14, 6)]
KINDS = pytest.mark.parametrize("dense", [False, True], ids=["moe", "dense"])


def gradients(backend: TorchBackend, seen: list[str]) -> dict[str, torch.Tensor]:
    def loss(outputs: Any) -> torch.Tensor:
        seen.append(outputs.logprobs.device.type)
        return -(outputs.logprobs - 0.1 * outputs.entropy).sum()

    backend.forward_backward(SAMPLES, loss, replay=True, entropy=True)
    return {name: parameter.grad.cpu() for name, parameter in backend.model.named_parameters()}


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("packing", [False, True])
@KINDS
def test_logprobs_entropies_and_gradients_are_those_of_the_cpu(
    on_both: Callable[..., Any], dense: bool, packing: bool, checkpointing: bool
) -> None:
    """Replay is on, so that each pass also proves that the experts used the rollout's routes."""
    cpu, gpu = on_both(dense=dense, packing=packing, checkpointing=checkpointing)
    expected, found = (backend.forward(SAMPLES, replay=True) for backend in (cpu, gpu))
    assert found.logprobs.device.type == found.entropy.device.type == "cpu"
    torch.testing.assert_close(found.logprobs, expected.logprobs, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.entropy, expected.entropy, rtol=0, atol=1e-4)
    assert gpu.replay_metrics() == pytest.approx(cpu.replay_metrics())
    seen: list[str] = []
    wanted, got = gradients(cpu, seen), gradients(gpu, seen)
    assert seen == ["cpu", "cuda"], "the loss gets tensors of the device"
    for name, gradient in wanted.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-3, atol=2e-4, msg=lambda text, name=name: name + text)


@KINDS
def test_bfloat16_is_close_to_the_cpu(on_both: Callable[..., Any], dense: bool) -> None:
    """The type that the fast kernels of attention and experts need."""
    cpu, gpu = on_both(dense=dense, dtype="bfloat16")
    expected, found = (backend.forward(SAMPLES, replay=True).logprobs for backend in (cpu, gpu))
    assert (expected - found).abs().mean() < 0.05
    assert all(gradient.isfinite().all() for gradient in gradients(gpu, []).values())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_permuted_row_breaks_the_proof(
    on_both: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, checkpointing: bool
) -> None:
    _, gpu = on_both(checkpointing=checkpointing)
    lay_out = gpu.replay.routes

    def permuted(samples: Any, layout: Any) -> Any:
        routes = lay_out(samples, layout)
        routes.experts[1, [2, 3]] = routes.experts[1, [3, 2]]
        return routes

    monkeypatch.setattr(gpu.replay, "routes", permuted)
    with pytest.raises(RoutingError, match="not proven: the experts of layer 1"):
        gpu.forward_backward(SAMPLES, lambda outputs: outputs.logprobs.sum(), replay=True, entropy=False)


@KINDS
def test_training_steps_have_the_metrics_of_the_cpu(on_both: Callable[..., Any], dense: bool) -> None:
    """Losses, advantages, a reference model, clipping and AdamW, over two steps."""
    expected, found = (train(trainer_of(backend), range(2)) for backend in on_both(dense=dense))
    for wanted, got in zip(expected, found, strict=True):
        assert got == pytest.approx(wanted, rel=1e-2, abs=1e-3)
