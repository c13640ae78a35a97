"""What the MoE bridges read in config.json, and what they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from miles_core.api import ConfigError, ModelBridge, PluginContext, RoutingSpec
from miles_plugins.bridges.deepseek_v3 import DeepseekV3
from miles_plugins.bridges.glm4_moe import Glm4Moe
from miles_plugins.bridges.gpt_oss import GptOss
from miles_plugins.bridges.mixtral import Mixtral

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Family

GROUPS = {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}


def test_it_is_a_model_bridge(family: Family) -> None:
    assert isinstance(family.make_bridge(), ModelBridge)


def test_the_spec_is_that_of_the_built_model_in_both_spellings(family: Family, tmp_path: Path) -> None:
    bridge = family.make_bridge()
    model = family.build(tmp_path / "published")
    model.save_pretrained(tmp_path / "saved")
    for name in ("published", "saved"):
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert bridge.routing_spec(config) == family.spec, name
    points = bridge.replay_points(model)
    assert tuple(point.layer_id for point in points) == family.spec.layer_ids
    assert {(point.router.num_experts, point.router.top_k) for point in points} == {(6, 2)}
    assert {point.experts.num_experts for point in points} == {6}


@pytest.mark.parametrize(
    ("bridge", "config", "spec"),
    [
        (
            Mixtral,
            {"num_hidden_layers": 32, "num_local_experts": 8, "num_experts_per_tok": 2},
            RoutingSpec(32, tuple(range(32)), 8, 2),
        ),
        (
            DeepseekV3,
            {
                "num_hidden_layers": 61,
                "n_routed_experts": 256,
                "num_experts_per_tok": 8,
                "first_k_dense_replace": 3,
                "moe_layer_freq": 1,
                "n_group": 8,
                "topk_group": 4,
            },
            RoutingSpec(61, tuple(range(3, 61)), 256, 8),
        ),
        (
            Glm4Moe,
            {"num_hidden_layers": 46, "n_routed_experts": 128, "num_experts_per_tok": 8, **GROUPS},
            RoutingSpec(46, tuple(range(1, 46)), 128, 8),
        ),
        (
            GptOss,
            {"num_hidden_layers": 24, "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4},
            RoutingSpec(24, tuple(range(24)), 32, 4),
        ),
    ],
)
def test_published_configs(bridge: Any, config: dict[str, Any], spec: RoutingSpec) -> None:
    assert bridge(None, PluginContext()).routing_spec(config) == spec


def test_a_config_whose_layers_are_all_dense_has_no_routing() -> None:
    config = {"num_hidden_layers": 2, "n_routed_experts": 8, "num_experts_per_tok": 2, **GROUPS}
    bridge = DeepseekV3(None, PluginContext())
    assert bridge.routing_spec({**config, "first_k_dense_replace": 2}) is None
    assert bridge.routing_spec({**config, "first_k_dense_replace": 9}) is None


EXPERT_COUNTS = {"num_experts", "num_local_experts", "n_routed_experts"}
NEEDED = {"num_hidden_layers", "num_experts_per_tok", "first_k_dense_replace", "n_group", "topk_group"} | EXPERT_COUNTS


@pytest.mark.parametrize("wrong", [None, "8", 2.5, True, -1])
def test_each_count_must_be_there_as_an_integer(family: Family, wrong: Any) -> None:
    names = NEEDED & family.config.keys()
    assert len(names) >= 3
    for name in names:
        with pytest.raises(ConfigError, match=rf"\b{name}\b.* (integer|at least [01])") as caught:
            family.make_bridge().routing_spec({**family.config, name: wrong})
        assert caught.value.remedy


def test_more_experts_per_token_than_experts_are_refused(family: Family) -> None:
    with pytest.raises(ConfigError, match="num_experts_per_tok in .* must be at most the number of experts, 6; got 7"):
        family.make_bridge().routing_spec({**family.config, "num_experts_per_tok": 7})
    with pytest.raises(ConfigError, match="num_experts_per_tok in .* must be at least 1; got 0"):
        family.make_bridge().routing_spec({**family.config, "num_experts_per_tok": 0})


@pytest.mark.parametrize(
    ("groups", "kept"), [(4, 1), (6, 3), (3, 4), (3, 0), (2, 1)], ids=["rest", "single", "more", "none", "few"]
)
def test_groups_that_cannot_hold_the_choice_are_refused(groups: int, kept: int) -> None:
    config = {"num_hidden_layers": 2, "n_routed_experts": 6, "num_experts_per_tok": 4, "first_k_dense_replace": 0}
    with pytest.raises(ConfigError, match="topk_group"):
        Glm4Moe(None, PluginContext()).routing_spec({**config, "n_group": groups, "topk_group": kept})


def test_sparse_layers_that_transformers_would_not_leave_out_are_refused() -> None:
    config = {"num_hidden_layers": 4, "n_routed_experts": 6, "num_experts_per_tok": 2, **GROUPS, "moe_layer_freq": 2}
    with pytest.raises(ConfigError, match="moe_layer_freq in .* must be 1 for DeepseekV3ForCausalLM; got 2"):
        DeepseekV3(None, PluginContext()).routing_spec(config)


@pytest.mark.parametrize("init", ["random", "pretrained"])
def test_a_quantised_checkpoint_is_refused(family: Family, tmp_path: Path, init: str) -> None:
    path = family.write(tmp_path, quantization_config={"quant_method": "mxfp4"})
    with pytest.raises(ConfigError, match=r"quantization_config \(mxfp4\)") as caught:
        family.make_bridge().build(str(path), dtype="bfloat16", init=init, seed=0)
    assert "bfloat16 checkpoint" in caught.value.remedy


def test_a_config_that_transformers_refuses_is_a_config_error(family: Family, tmp_path: Path) -> None:
    path = family.write(tmp_path, hidden_size="wide")
    with pytest.raises(ConfigError, match=r"config\.json does not describe a .*hidden_size"):
        family.make_bridge().build(str(path), dtype="float32", init="random", seed=0)


def test_another_family_is_refused(family: Family, tmp_path: Path) -> None:
    path = family.write(tmp_path, architectures=["LlamaForCausalLM"])
    with pytest.raises(ConfigError, match=rf"builds {family.bridge.architecture}; .*'LlamaForCausalLM'"):
        family.make_bridge().build(str(path), dtype="float32", init="random", seed=0)


def test_reading_a_config_needs_no_torch() -> None:
    code = """
import sys
from miles_core.api import PluginContext
from miles_plugins.bridges import deepseek_v3, glm4_moe, gpt_oss, mixtral, qwen3_moe
config = {"num_hidden_layers": 2, "num_experts_per_tok": 1, "n_routed_experts": 4, "num_local_experts": 4,
          "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
for bridge in (deepseek_v3.DeepseekV3, glm4_moe.Glm4Moe, gpt_oss.GptOss, mixtral.Mixtral, qwen3_moe.Qwen3Moe):
    assert bridge(None, PluginContext()).routing_spec(config)
sys.exit("torch" in sys.modules or "transformers" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
