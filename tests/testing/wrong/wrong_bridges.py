"""Model bridges that break one rule each."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

from miles_core.api import NameMapping, Part, Rule
from miles_core.testing import ModelBridgeSuite
from miles_plugins.bridges.qwen3_moe import Qwen3Moe
from miles_plugins.bridges.router_weights import softmax_weights


class SameWeights(Qwen3Moe):
    """Draws from seed 0, whatever it is told."""

    def build(self, model_path, *, dtype, init, seed):
        return super().build(model_path, dtype=dtype, init=init, seed=0)


class OneType(Qwen3Moe):
    """Knows float32 alone."""

    def build(self, model_path, *, dtype, init, seed):
        return super().build(model_path, dtype="float32", init=init, seed=seed)


def stacked(*parts: str) -> NameMapping:
    first, *others = Qwen3Moe.mapping.rules
    experts = "model.layers.{layer}.mlp.experts"
    named = tuple(Part(f"{experts}.{{expert}}.{part}.weight", split=0) for part in parts)
    return replace(Qwen3Moe.mapping, rules=(Rule(first.parameter, named, stacked=True), *others))


class Indivisible(Qwen3Moe):
    """Cuts entries into parts that they do not divide into."""

    mapping = stacked("gate_proj", "up_proj", "side_proj")


class Swapped(Qwen3Moe):
    """Takes one projection for the other."""

    mapping = stacked("up_proj", "gate_proj")


class Careless(Qwen3Moe):
    """Loses the last row of the embedding."""

    def build(self, model_path, *, dtype, init, seed):
        model = super().build(model_path, dtype=dtype, init=init, seed=seed)
        if init == "pretrained":
            model.model.embed_tokens.weight.data[-1] = 0
        return model


class Louder(Qwen3Moe):
    """Raises all logits."""

    def build(self, model_path, *, dtype, init, seed):
        model = super().build(model_path, dtype=dtype, init=init, seed=seed)
        if init == "pretrained":
            model.lm_head.register_forward_hook(lambda module, arguments, output: output + 1)
        return model


class OtherLayers(Qwen3Moe):
    """Counts layers from one."""

    def routing_spec(self, hf_config):
        spec = super().routing_spec(hf_config)
        return replace(spec, layer_ids=tuple(layer + 1 for layer in spec.layer_ids))


class Unnormalised(Qwen3Moe):
    """Weighs experts in another way than the router."""

    def weights(self, router):
        return partial(softmax_weights, renormalise=not router.norm_topk_prob)


class Aside(Qwen3Moe):
    """Points at copies of the routers."""

    def replay_points(self, model):
        return [replace(point, router=copy.deepcopy(point.router)) for point in super().replay_points(model)]


class Heavy(Qwen3Moe):
    """Imports torch to read a config."""

    def routing_spec(self, hf_config):
        import torch  # noqa: F401

        return super().routing_spec(hf_config)


class OfQwen(ModelBridgeSuite):
    architecture = "Qwen3MoeForCausalLM"


class TestSameWeights(OfQwen):
    plugin = SameWeights
    breaks = ("random_weights_follow_the_seed",)


class TestOneType(OfQwen):
    plugin = OneType
    breaks = ("builds_the_dtype",)


class TestIndivisible(OfQwen):
    plugin = Indivisible
    # what no part claims is not exported
    breaks = ("the_mapping_claims_every_tensor_once", "exports_what_transformers_writes")


class TestSwapped(OfQwen):
    plugin = Swapped
    breaks = ("exports_what_transformers_writes",)


class TestCareless(OfQwen):
    plugin = Careless
    breaks = ("loads_what_is_exported",)


class TestLouder(OfQwen):
    plugin = Louder
    breaks = ("logits_are_those_of_transformers",)


class TestOtherLayers(OfQwen):
    plugin = OtherLayers
    breaks = ("routing_spec_agrees_with_the_replay_points",)


class TestUnnormalised(OfQwen):
    plugin = Unnormalised
    breaks = ("replay_weights_are_the_routers_own",)


class TestAside(OfQwen):
    plugin = Aside
    breaks = ("replayed_experts_are_used",)


class TestHeavy(OfQwen):
    plugin = "wrong_bridges:Heavy"
    breaks = ("routing_spec_needs_no_torch",)
