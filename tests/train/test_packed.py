"""Packing: the samples of a micro-batch in one row give the logprobs and gradients of one row each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from miles_core.errors import TrainError
from miles_core.train.torch_backend import TorchBackendConfig
from miles_core.types import RoutingTrace

from .conftest import make_sample

SAMPLES = [make_sample(length, seed=length, prompt=min(3, length), temperature=0.8) for length in (9, 2, 14, 1, 6)]
DENSE_FIRST = [replace(s, routing=RoutingTrace(s.routing.experts[:, 1:].copy(), (1,))) for s in SAMPLES]


def results(backend, micro_batches) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Logprobs and entropies of each sample, and the gradient over all micro-batches."""
    rows = []
    for samples in micro_batches:
        outputs = backend.forward(samples, replay=True)
        for values in (outputs.logprobs, outputs.entropy):
            rows += [row[: len(sample.tokens)] for row, sample in zip(values, samples, strict=True)]
        mask = torch.zeros(outputs.logprobs.shape)
        for row, sample in enumerate(samples):
            mask[row, : len(sample.tokens)] = torch.tensor(sample.loss_mask.astype("float32"))
        weighted = mask * torch.linspace(-1, 1, mask.numel()).view(mask.shape)

        def loss(out, weighted=weighted):
            return (weighted * (out.logprobs - 0.1 * out.entropy)).sum()

        backend.forward_backward(samples, loss, replay=True, entropy=True)
    return rows, {name: parameter.grad for name, parameter in backend.model.named_parameters()}


def assert_alike(first, second) -> None:
    for one, other in zip(first[0], second[0], strict=True):
        assert (one - other).abs().max() < 1e-5
    for name, gradient in first[1].items():
        assert torch.allclose(gradient, second[1][name], atol=2e-5), name
        assert torch.isfinite(gradient).all(), name


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["dense", "moe", "dense first"])
def test_packed_rows_give_what_padded_ones_give(
    make_backend, dense_first_model, kind: str, checkpointing: bool
) -> None:
    samples = DENSE_FIRST if kind == "dense first" else SAMPLES
    options = {"dense": kind == "dense", "path": dense_first_model if kind == "dense first" else None}
    micro_batches = [samples[:3], samples[3:4], samples[4:]]  # the second has nothing to feed
    padded = results(make_backend(**options), micro_batches)
    assert_alike(results(make_backend(packing=True, checkpointing=checkpointing, **options), micro_batches), padded)


def test_a_sample_does_not_see_its_neighbours_in_a_packed_row(make_backend) -> None:
    backend = make_backend(packing=True)
    last = make_sample(8, seed=1)
    alone = backend.forward([last], replay=True).logprobs[0]
    for neighbour in (make_sample(12, seed=2), make_sample(2, seed=3, prompt=1)):
        together = backend.forward([neighbour, last], replay=True).logprobs[1]
        assert (together[:8] - alone).abs().max() < 1e-5


@pytest.mark.parametrize("other", ["packing", "activation_checkpointing"])
def test_deterministic_passes_stand_alone(other: str) -> None:
    with pytest.raises(ValueError, match=f"{other} = true has no place beside deterministic = true"):
        TorchBackendConfig(deterministic=True, **{other: True})


@pytest.mark.parametrize("option", ["packing", "deterministic"])
def test_attention_that_would_mix_samples_is_refused(make_backend, monkeypatch, option: str) -> None:
    """As gpt-oss has it: eager attention, whose model takes no notice of positions that start again."""
    from miles_core.train.torch_backend import TorchBackend

    build = TorchBackend._build

    def eager(self, init):
        model = build(self, init)
        model.set_attn_implementation("eager")
        return model

    monkeypatch.setattr(TorchBackend, "_build", eager)
    make_backend()
    with pytest.raises(TrainError, match="need attention implementation 'sdpa'"):
        make_backend(**{option: True})
