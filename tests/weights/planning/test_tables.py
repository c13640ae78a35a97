"""Predicted tables of engines, and what a trainer's ranks hold."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from miles_core.api import NameMapping, Part, Rule
from miles_core.errors import ConfigError, WeightSyncError
from miles_core.lib.layout import build_layout
from miles_core.types import Shard
from miles_core.weights.planning.grid import EngineGrid, TrainerGrid
from miles_core.weights.planning.model import plan_model
from miles_core.weights.planning.predict import EngineGroup, Placing, predict_plan
from miles_core.weights.planning.tables import Tables
from miles_core.weights.planning.trainer import trainer_layouts
from miles_plugins.bridges.glm4_moe import Glm4Moe
from miles_plugins.bridges.llama import Llama
from miles_plugins.bridges.qwen3 import Qwen3
from miles_plugins.bridges.qwen3_moe import Qwen3Moe

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 3,
    "hidden_size": 16,
    "intermediate_size": 24,
    "moe_intermediate_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [0],
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
DENSE = {key: value for key, value in CONFIG.items() if "expert" not in key and "mlp_only" not in key}


@pytest.fixture
def outline(tmp_path):
    """Of a bridge and a config: written as ``config.json`` alone."""

    def outline(bridge=Qwen3Moe, **changes):
        kind = {Qwen3: "qwen3", Llama: "llama", Qwen3Moe: "qwen3_moe"}[bridge]
        base = CONFIG if bridge is Qwen3Moe else DENSE
        config = {**base, "architectures": [bridge.architecture], "model_type": kind, **changes}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return plan_model(bridge(None, None), tmp_path, bridge.architecture, config)

    return outline


def shapes(table):
    return {row.name: row.shape for row in table.parameters}


def test_checkpoint_tensors_come_from_config_json_alone_and_take_no_memory(outline):
    model = outline(hidden_size=1 << 14, moe_intermediate_size=1 << 14, num_experts=64)  # 10^11 parameters
    tensors = model.layout.tensors
    assert tensors["model.layers.1.mlp.experts.63.down_proj.weight"].shape == (1 << 14, 1 << 14)
    assert {spec.dtype for spec in tensors.values()} == {"bfloat16"}
    assert model.layout.unclaimed == ()


def test_a_rank_has_its_shares_of_fused_stacked_and_padded_parameters(outline):
    table = Tables(outline()).of(EngineGrid(tp=4, ep=2).shard(3))
    found = shapes(table)
    assert found["model.layers.1.self_attn.qkv_proj.weight"] == (4 + 4 + 4, 16)  # two heads for four ranks
    assert found["model.layers.1.self_attn.o_proj.weight"] == (16, 4)
    assert found["model.layers.0.mlp.gate_up_proj.weight"] == (12, 16)
    assert found["model.layers.1.mlp.experts.w13_weight"] == (2, 8, 16)
    assert found["model.layers.1.mlp.experts.w2_weight"] == (2, 16, 4)
    assert found["model.layers.1.mlp.gate.weight"] == (4, 16)
    assert found["model.embed_tokens.weight"] == found["lm_head.weight"] == (32, 16)
    assert table.naming == "sglang"


@pytest.mark.parametrize("grid", [EngineGrid(), EngineGrid(tp=2), EngineGrid(tp=4, ep=2, pp=3), EngineGrid(tp=2, ep=2)])
def test_the_layout_of_a_predicted_table_claims_all_of_it(outline, grid):
    model = outline()
    tables = Tables(model)
    for rank in range(grid.ranks):
        table = tables.of(grid.shard(rank))
        layout = build_layout(model.mapping("sglang"), table, model.hf_config, model.layout.tensors)
        assert layout.unclaimed == ()
        assert sum(p.nbytes for p in layout.placements) + layout.padding == sum(r.nbytes for r in table.parameters)


def test_a_tied_output_projection_shares_memory_or_is_a_copy_on_the_last_stage(outline):
    tables = Tables(outline(Qwen3, tie_word_embeddings=True))
    (whole,) = [row for row in tables.of(Shard()).parameters if row.name == "lm_head.weight"]
    assert whole.shares == "model.embed_tokens.weight"
    first, last = (tables.of(Shard(pp_rank=rank, pp_size=2)) for rank in range(2))
    assert "lm_head.weight" not in shapes(first)
    assert "model.embed_tokens.weight" not in shapes(last)
    assert [row.shares for row in last.parameters if row.name == "lm_head.weight"] == [None]


@pytest.mark.parametrize(("bridge", "everywhere"), [(Qwen3, False), (Llama, True), (Qwen3Moe, True)])
def test_stages_have_their_layers_and_the_head_that_sglang_makes(outline, bridge, everywhere):
    tables = Tables(outline(bridge))
    first, last = (shapes(tables.of(Shard(pp_rank=rank, pp_size=2))) for rank in range(2))
    assert "model.embed_tokens.weight" in first
    assert "model.layers.0.input_layernorm.weight" in first
    assert "model.layers.1.input_layernorm.weight" in last
    assert "model.norm.weight" in last
    assert "model.norm.weight" not in first
    assert ("lm_head.weight" in first) is everywhere
    assert "lm_head.weight" in last


def test_engines_may_hold_another_type(outline):
    assert {row.dtype for row in Tables(outline(), dtype="float32").of(Shard()).parameters} == {"float32"}


def test_an_embedded_engine_has_the_built_modules_and_is_not_divided(outline):
    tables = Tables(outline(), "torch")
    assert shapes(tables.of(Shard()))["model.layers.1.mlp.experts.gate_up_proj"] == (4, 16, 16)
    with pytest.raises(ConfigError, match="are not divided; got 2 x 1 ranks"):
        tables.of(Shard(tp_size=2))


def test_a_bridge_that_does_not_know_the_engine_is_an_error_that_names_the_remedy(outline):
    model = replace(outline(), architecture=Glm4Moe.architecture, mappings={"torch": Glm4Moe.mapping})
    with pytest.raises(WeightSyncError, match=r"bridge of Glm4MoeForCausalLM .* sglang .* it knows torch") as caught:
        Tables(model).of(Shard())
    assert "engine_mappings" in caught.value.remedy


def test_a_rule_with_a_part_that_the_model_lacks_is_refused_by_name(outline):
    broken = Rule("both", (Part("model.norm.weight"), Part("model.norm.bias")))
    model = replace(outline(), mappings={"sglang": NameMapping((broken,))})
    with pytest.raises(WeightSyncError, match=r"parameter both is made of .* does not have: model\.norm\.bias"):
        Tables(model).of(Shard())


def test_trainer_ranks_that_hold_the_same_share_one_layout(outline):
    layouts = trainer_layouts(outline(), TrainerGrid(tp=2, dp=2))
    assert layouts[0] is layouts[2]
    assert layouts[0] is not layouts[1]
    assert len({id(one) for one in trainer_layouts(outline(), TrainerGrid(dp=3))}) == 1


def test_trainer_stages_are_even_and_the_last_one_has_the_rest(outline):
    layouts = trainer_layouts(outline(num_hidden_layers=5), TrainerGrid(pp=2))
    layers = [sorted({int(n.split(".")[2]) for n in one.tensors if ".layers." in n}) for one in layouts]
    assert layers == [[0, 1, 2], [3, 4]]
    with pytest.raises(WeightSyncError, match="5 layers cannot fill 4 pipeline stages of 2"):
        trainer_layouts(outline(num_hidden_layers=5), TrainerGrid(pp=4))


def test_engines_that_cannot_be_updated_are_left_out_with_the_reason(outline):
    groups = [EngineGroup("good", EngineGrid(tp=2)), EngineGroup("bad", EngineGrid(tp=3))]
    notes = []
    found = predict_plan(outline(), TrainerGrid(), groups, 1 << 20, Placing(), notes.append)
    assert "do not divide among 3 ranks" in found.problems.pop("bad")
    assert found.problems == {}
    assert {receiver.engine for stream in found.plan.streams for receiver in stream.receivers} == {"good"}
    assert any("good" in note for note in notes)
    with pytest.raises(WeightSyncError, match="no engine can be updated: .* do not divide"):
        predict_plan(outline(), TrainerGrid(), groups[1:], 1 << 20)
