"""Replay in the torch backend, for every family: the experts get the rollout's routes and the gradients are true."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from miles_core.api import TrainError

from .conftest import make_sample, own_routes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from miles_core.api import Sample, TokenOutputs
    from miles_core.train.torch_backend import TorchBackend

    from .conftest import Family

Make = Callable[..., "TorchBackend"] if TYPE_CHECKING else Any
LENGTHS = (9, 14, 6)


def loss_of(outputs: TokenOutputs, samples: Sequence[Sample]) -> torch.Tensor:
    rows = zip(outputs.logprobs, samples, strict=True)
    return -sum((row[: len(s.tokens)] * torch.tensor(s.loss_mask)).sum() for row, s in rows)


def train(backend: TorchBackend, micro_batches: Sequence[Sequence[Sample]]) -> dict[str, torch.Tensor]:
    """Gradients by parameter name."""
    for samples in micro_batches:
        backend.forward_backward(
            samples, lambda outputs, samples=samples: loss_of(outputs, samples), replay=True, entropy=False
        )
    return {name: parameter.grad.clone() for name, parameter in backend.model.named_parameters()}


def test_replaying_the_models_own_routes_changes_no_bit(family: Family, make_backend: Make) -> None:
    backend = make_backend()
    sample = make_sample(family.spec, 14)
    sample = replace(sample, routing=own_routes(family, backend.model, sample.tokens))
    free = backend.forward([sample], replay=False).logprobs
    assert torch.equal(backend.forward([sample], replay=True).logprobs, free)
    assert backend.replay_metrics() == {"replay/mismatch_fraction": 0.0}


def test_foreign_routes_change_the_logprobs(family: Family, make_backend: Make) -> None:
    backend = make_backend()
    samples = [make_sample(family.spec, length) for length in LENGTHS]
    free = backend.forward(samples, replay=False).logprobs
    assert (free - backend.forward(samples, replay=True).logprobs).abs().max() > 0.05
    assert backend.replay_metrics()["replay/mismatch_fraction"] > 0.3


class Received:
    """What each layer's experts got, pass by pass."""

    def __init__(self, family: Family, model: Any) -> None:
        self.passes: dict[int, list[torch.Tensor]] = {layer: [] for layer in family.layer_ids}
        for point in family.make_bridge().replay_points(model):
            point.experts.register_forward_pre_hook(self._hook(point.layer_id))

    def _hook(self, layer: int) -> Callable[..., None]:
        return lambda module, args: self.passes[layer].append(args[1].clone())


def expected(family: Family, samples: Sequence[Sample], layer: int) -> list[list[list[int]]]:
    index = family.layer_ids.index(layer)
    return [sample.routing.experts[:, index].tolist() for sample in samples]


def cut(received: torch.Tensor, samples: Sequence[Sample]) -> list[list[list[int]]]:
    """The rows of each sample, without padding."""
    width = max(len(sample.tokens) for sample in samples) - 1
    rows = received.view(len(samples), width, -1)
    return [row[: len(sample.tokens) - 1].tolist() for row, sample in zip(rows, samples, strict=True)]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_experts_receive_exactly_the_routes_of_two_micro_batches_in_flight(
    family: Family, make_backend: Make, checkpointing: bool
) -> None:
    backend = make_backend(checkpointing=checkpointing)
    first = [make_sample(family.spec, length) for length in LENGTHS]
    second = [make_sample(family.spec, length, seed=1) for length in (12, 7)]
    received = Received(family, backend.model)

    def loss_after_the_second_batch(outputs: TokenOutputs) -> torch.Tensor:
        train(backend, [second])
        return loss_of(outputs, first)

    backend.forward_backward(first, loss_after_the_second_batch, replay=True, entropy=False)
    order = [first, second, second, first] if checkpointing else [first, second]
    for layer, passes in received.passes.items():
        assert [cut(got, samples) for got, samples in zip(passes, order, strict=True)] == [
            expected(family, samples, layer) for samples in order
        ]


def test_recompute_gives_the_same_gradients_and_routers_learn(family: Family, make_backend: Make) -> None:
    batches = [[make_sample(family.spec, n) for n in LENGTHS], [make_sample(family.spec, 8, 1)]]
    plain = train(make_backend(), batches)
    recomputed = train(make_backend(checkpointing=True), batches)
    for name, gradient in plain.items():
        assert torch.equal(recomputed[name], gradient), name
    routers = [f"model.layers.{layer}.mlp.{family.bridge.router}.weight" for layer in family.layer_ids]
    assert all(plain[name].abs().max() > 1e-3 for name in routers)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_packing_gives_the_gradients_of_padding_or_is_refused(
    family: Family, make_backend: Make, checkpointing: bool
) -> None:
    if family.bridge.attention != "sdpa":
        with pytest.raises(TrainError, match="packing"):
            make_backend(packing=True)
        return
    batches = [[make_sample(family.spec, length) for length in (*LENGTHS, 2)]]
    padded = train(make_backend(), batches)
    packed = train(make_backend(packing=True, checkpointing=checkpointing), batches)
    for name, gradient in padded.items():
        torch.testing.assert_close(packed[name], gradient, atol=2e-5, rtol=1e-3, msg=name)


class Float64(TorchFunctionMode):
    """Models compute softmax, norms and routers in float32 whatever their type; here that is float64 too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        wider = {torch.float32: torch.float64}
        args = [wider.get(value, value) if isinstance(value, torch.dtype) else value for value in args]
        named = {key: wider.get(v, v) if isinstance(v, torch.dtype) else v for key, v in (kwargs or {}).items()}
        return func(*args, **named)


def test_gradients_under_replay_are_those_of_finite_differences(family: Family, make_backend: Make) -> None:
    backend = make_backend(double=True)
    samples = [make_sample(family.spec, length) for length in (7, 5)]
    layer = family.layer_ids[-1]
    names = [f"mlp.{family.bridge.router}.weight", "mlp.experts.down_proj", family.attention_weight]
    with Float64():
        gradients = train(backend, [samples])
        for name in [f"model.layers.{layer}.{name}" for name in names] + ["model.embed_tokens.weight"]:
            weight, gradient = backend.model.get_parameter(name), gradients[name].flatten()
            at = int(gradient.abs().argmax())
            slope = central_difference(weight, at, lambda: loss_of(backend.forward(samples, replay=True), samples))
            assert slope == pytest.approx(float(gradient[at]), rel=1e-6), name


def central_difference(weight: torch.Tensor, at: int, function: Callable[[], torch.Tensor]) -> float:
    step, flat = 1e-5, weight.data.view(-1)
    middle = float(flat[at])
    values = []
    for moved in (middle + step, middle - step):
        flat[at] = moved
        values.append(float(function()))
    flat[at] = middle
    return (values[0] - values[1]) / (2 * step)
