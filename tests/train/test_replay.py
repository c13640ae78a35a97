"""R3: the trainer's experts are the rollout's, proven where they are used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from miles_core.errors import RoutingError
from miles_core.train.layout import packed_layout, padded_layout
from miles_core.train.torch_backend import TorchBackend
from miles_core.types import RoutingTrace

from .conftest import make_sample

SAMPLES = [make_sample(length, seed=length) for length in (9, 14, 6)]


def own_routes(backend: TorchBackend, sample) -> RoutingTrace:
    """The routes that the model itself takes on one sample."""
    layers: list[torch.Tensor] = []
    points = backend._source.bridge.replay_points(backend.model)
    handles = [p.router.register_forward_hook(lambda m, a, out: layers.append(out[2])) for p in points]
    backend.forward([sample], replay=False)
    for handle in handles:
        handle.remove()
    return RoutingTrace(torch.stack(layers, 1).numpy().astype(np.uint8), (0, 1))


def gradients(backend: TorchBackend, micro_batches) -> dict[str, torch.Tensor]:
    for samples in micro_batches:
        mask = torch.zeros(len(samples), max(len(s.tokens) for s in samples))
        for row, sample in enumerate(samples):
            mask[row, : len(sample.tokens)] = torch.tensor(sample.loss_mask.astype(np.float32))
        backend.forward_backward(
            samples, lambda out, mask=mask: -(out.logprobs * mask).sum(), replay=True, entropy=False
        )
    return {name: p.grad.clone() for name, p in backend.model.named_parameters()}


def test_replaying_the_models_own_routes_changes_nothing(make_backend) -> None:
    backend = make_backend()
    samples = [replace(s, routing=own_routes(backend, s)) for s in SAMPLES]
    free = backend.forward(samples, replay=False).logprobs
    replayed = backend.forward(samples, replay=True).logprobs
    for row, sample in enumerate(samples):
        assert (free - replayed)[row, : len(sample.tokens)].abs().max() < 1e-6
    assert backend.replay_metrics() == {"replay/mismatch_fraction": 0.0}


def test_foreign_routes_are_used_and_their_difference_is_reported(make_backend) -> None:
    backend = make_backend()
    free = backend.forward(SAMPLES, replay=False).logprobs
    replayed = backend.forward(SAMPLES, replay=True).logprobs
    assert (free - replayed).abs().max() > 0.1
    assert backend.replay_metrics()["replay/mismatch_fraction"] > 0.5
    assert backend.replay_metrics() == {}, "metrics are taken once"


def test_a_sample_is_routed_alike_alone_and_in_a_padded_batch(make_backend) -> None:
    backend = make_backend()
    together = backend.forward(SAMPLES, replay=True).logprobs
    for row, sample in enumerate(SAMPLES):
        alone = backend.forward([sample], replay=True).logprobs[0]
        assert (together[row, : len(sample.tokens)] - alone).abs().max() < 1e-5


def test_recompute_and_micro_batches_give_the_same_gradients(make_backend) -> None:
    whole = gradients(make_backend(), [SAMPLES])
    split = gradients(make_backend(), [[s] for s in SAMPLES])
    recomputed = gradients(make_backend(checkpointing=True), [SAMPLES[:2], SAMPLES[2:]])
    for name, expected in whole.items():
        assert torch.allclose(split[name], expected, atol=2e-5), name
        assert torch.allclose(recomputed[name], expected, atol=2e-5), name
    assert all(whole[name].abs().sum() > 0 for name in whole if name.endswith("gate.weight")), "routers learn"


def test_the_gradient_of_a_router_is_that_of_replayed_routes(make_backend) -> None:
    """Finite differences of the loss under replay, in float64."""
    backend = make_backend()
    backend.model.set_experts_implementation("eager")
    backend.model.double()
    name = "model.layers.1.mlp.gate.weight"
    weight = dict(backend.model.named_parameters())[name]
    gradient = gradients(backend, [SAMPLES])[name].view(-1)

    def loss() -> float:
        total = 0.0
        for sample in SAMPLES:
            logprobs = backend.forward([sample], replay=True).logprobs[0]
            total -= float((logprobs * torch.tensor(sample.loss_mask.astype(np.float64))).sum())
        return total

    at = int(gradient.abs().argmax())
    step = 1e-2
    with torch.no_grad():
        flat = weight.view(-1)
        flat[at] += step
        above = loss()
        flat[at] -= 2 * step
        below = loss()
    assert (above - below) / (2 * step) == pytest.approx(float(gradient[at]), rel=2e-2)


def permuted(backend: TorchBackend, monkeypatch) -> None:
    """From now on two rows of layer 1 are exchanged in what the backend replays."""
    lay_out = backend.replay.routes

    def routes(samples, layout):
        laid_out = lay_out(samples, layout)
        laid_out.experts[1, [2, 3]] = laid_out.experts[1, [3, 2]]
        return laid_out

    monkeypatch.setattr(backend.replay, "routes", routes)


MODES = [
    {},
    {"packing": True},
    {"checkpointing": True},
    {"packing": True, "checkpointing": True},
    {"deterministic": True},
]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_permuting_one_row_of_a_trace_breaks_the_proof(make_backend, monkeypatch, mode) -> None:
    backend = make_backend(**mode)
    permuted(backend, monkeypatch)
    with pytest.raises(RoutingError, match="not proven: the experts of layer 1"):
        backend.forward(SAMPLES, replay=True)
    with pytest.raises(RoutingError, match="not proven: the experts of layer 1"):
        backend.forward_backward(SAMPLES, lambda out: out.logprobs.sum(), replay=True, entropy=False)


@pytest.mark.parametrize("packing", [False, True])
def test_routes_that_change_before_recompute_break_the_proof(make_backend, packing: bool) -> None:
    backend = make_backend(checkpointing=True, packing=packing)

    def loss(out):
        experts = backend.replay._current.experts
        experts[0, [4, 5]] = experts[0, [5, 4]]
        return out.logprobs.sum()

    with pytest.raises(RoutingError, match="layer 0 used the rollout's routes in 1 of 2 passes"):
        backend.forward_backward(SAMPLES, loss, replay=True, entropy=False)


def test_what_proves_the_routes_shares_no_memory_with_them(make_backend, dense_first_model) -> None:
    """With one routed layer a trace needs no rearrangement, which invites sharing."""
    backend = make_backend(path=dense_first_model, packing=True)
    sample = replace(SAMPLES[0], routing=RoutingTrace(SAMPLES[0].routing.experts[:, 1:].copy(), (1,)))
    routes = backend.replay.routes([sample], packed_layout([len(sample.tokens)]))
    routes.experts[0, 0] = 7
    assert routes.proof[0, 0].tolist() == sample.routing.experts[0, 0].tolist()


def test_a_recompute_without_routes_breaks_the_proof(make_backend) -> None:
    backend = make_backend(checkpointing=True)
    backend.model.activation_checkpointing_enable({"use_reentrant": False})

    def loss(out):
        backend.replay._current = None  # what a backend that forgets its routes would do
        return out.logprobs.sum()

    with pytest.raises((RoutingError, torch.utils.checkpoint.CheckpointError)):
        backend.forward_backward(SAMPLES, loss, replay=True, entropy=False)


@pytest.mark.parametrize("top_k", [2, 3])
def test_a_trace_of_another_model_is_refused(make_backend, top_k: int) -> None:
    layers = (5, 6) if top_k == 2 else (0, 1)
    experts = np.tile(np.arange(top_k, dtype=np.uint8), (7, 2, 1))
    sample = replace(make_sample(8), routing=RoutingTrace(experts, layers))
    message = rf"layers \[{layers[0]}, {layers[1]}\], top-{top_k}; the trained model has MoE layers \[0, 1\], top-2"
    with pytest.raises(RoutingError, match=message):
        make_backend().forward([sample], replay=True)


def test_a_sample_without_a_trace_is_refused(make_backend) -> None:
    with pytest.raises(RoutingError, match="sample x has no routing trace"):
        make_backend().forward([make_sample(8, routed=False)], replay=True)


def test_padding_is_spread_over_experts_and_distinct_within_a_row(make_backend) -> None:
    samples = [make_sample(70), make_sample(6)]
    layout = padded_layout([len(sample.tokens) for sample in samples])
    routes = make_backend().replay.routes(samples, layout)
    free = torch.ones(routes.experts.shape[1], dtype=torch.bool)
    free[layout.cells] = False
    padding = routes.experts[:, free]
    assert padding.shape[1] == 64
    assert (padding[..., 0] != padding[..., 1]).all()
    for layer in padding:
        counts = torch.bincount(layer.flatten(), minlength=8)
        assert counts.max() - counts.min() <= 1
