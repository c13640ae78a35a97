"""Checkpoint names of the MoE families: what is exported is what transformers writes and reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from miles_core.api import ConfigError
from miles_core.lib.layout import build_layout, parameter_table, view
from miles_core.train.checkpoint_names import by_checkpoint_name, without_aliases
from miles_core.train.copy_buffers import CopyBuffers
from miles_core.train.snapshot import Snapshot, load_weights

if TYPE_CHECKING:
    from .conftest import Family

IDS = torch.tensor([[1, 2, 3, 5, 8, 13, 21]])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
TYING = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])


def export(model: Any, family: Family, path: Path) -> Path:
    """What a training run writes as its checkpoint."""
    Snapshot(model, family.bridge.mapping, None, path.with_name("model"), CopyBuffers())(path)
    return path


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    same_types = all(one[name].dtype == other[name].dtype for name in one)
    return one.keys() == other.keys() and same_types and all(torch.equal(one[name], other[name]) for name in one)


@TYING
@DTYPES
def test_the_layout_has_names_shapes_types_and_bytes_of_what_save_pretrained_writes(
    family: Family, tmp_path: Path, dtype: str, tied: bool
) -> None:
    model = family.build(tmp_path / "model", dtype=dtype, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "saved")
    tensors = model.state_dict()
    layout = build_layout(family.bridge.mapping, parameter_table(tensors), {"tie_word_embeddings": tied})
    with safe_open(tmp_path / "saved" / "model.safetensors", "pt") as saved:
        assert {placement.tensor.name for placement in layout.placements} == set(saved.keys())
        for placement in layout.placements:
            expected = saved.get_tensor(placement.tensor.name)
            found = view(tensors, placement)
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected), placement.tensor.name
    assert layout.unclaimed == ()
    assert sum(placement.tensor.nbytes for placement in layout.placements) == sum(
        tensor.nbytes for tensor in without_aliases(family.bridge.mapping, tensors).values()
    )


@TYING
@DTYPES
def test_an_exported_checkpoint_fills_a_fresh_model_bit_by_bit(
    family: Family, tmp_path: Path, dtype: str, tied: bool
) -> None:
    model = family.build(tmp_path / "model", dtype=dtype, tie_word_embeddings=tied)
    path = export(model, family, tmp_path / "exported")
    fresh = family.build(tmp_path / "model", dtype=dtype, tie_word_embeddings=tied, seed=1)
    assert not same_bits(fresh.state_dict(), model.state_dict())
    load_weights(path, fresh, family.bridge.mapping)
    assert same_bits(fresh.state_dict(), model.state_dict())


@DTYPES
def test_transformers_and_the_bridge_load_what_is_exported(family: Family, tmp_path: Path, dtype: str) -> None:
    model = family.build(tmp_path / "model", dtype=dtype)
    path = export(model, family, tmp_path / "exported")
    plain, report = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, output_loading_info=True)
    built = family.make_bridge().build(str(path), dtype=dtype, init="pretrained", seed=5)
    assert not any(report.values())
    for loaded in (plain, built):
        assert same_bits(loaded.state_dict(), model.state_dict())
        with torch.no_grad():
            assert torch.equal(loaded(IDS).logits, model(IDS).logits)


def test_checkpoint_names_are_the_published_ones(family: Family, tmp_path: Path) -> None:
    model = family.build(tmp_path)
    names = by_checkpoint_name(family.bridge.mapping, model.state_dict()).keys()
    published = {
        "qwen3_moe": ["model.layers.0.mlp.gate.weight", "model.layers.2.mlp.experts.5.up_proj.weight"],
        "mixtral": [
            "model.layers.0.block_sparse_moe.gate.weight",
            "model.layers.2.block_sparse_moe.experts.5.w1.weight",
            "model.layers.2.block_sparse_moe.experts.5.w2.weight",
            "model.layers.2.block_sparse_moe.experts.5.w3.weight",
        ],
        "deepseek_v3": [
            "model.layers.0.mlp.gate_proj.weight",
            "model.layers.1.mlp.gate.e_score_correction_bias",
            "model.layers.1.mlp.experts.5.down_proj.weight",
            "model.layers.1.mlp.shared_experts.up_proj.weight",
            "model.layers.1.self_attn.kv_a_proj_with_mqa.weight",
        ],
        "glm4_moe": [
            "model.layers.0.mlp.gate_proj.weight",
            "model.layers.1.mlp.gate.e_score_correction_bias",
            "model.layers.1.mlp.experts.5.gate_proj.weight",
        ],
        "gpt_oss": [
            "model.layers.0.mlp.router.bias",
            "model.layers.0.mlp.experts.gate_up_proj",
            "model.layers.0.mlp.experts.gate_up_proj_bias",
            "model.layers.0.self_attn.sinks",
        ],
    }
    assert [name for name in published.get(family.model_type, ()) if name not in names] == []


def with_a_layer_that_predicts_ahead(family: Family, path: Path, **changes: Any) -> Path:
    """A saved model whose file also holds the layer after the last, as published checkpoints do."""
    model = family.build(path, **changes)
    model.save_pretrained(path)
    (path / "config.json").write_text(json.dumps({**family.config, **changes}))
    tensors = load_file(path / "model.safetensors")
    last = {name: tensor.clone() for name, tensor in tensors.items() if name.startswith("model.layers.2.")}
    ahead = {name.replace(".layers.2.", ".layers.3."): tensor for name, tensor in last.items()}
    save_file({**tensors, **ahead, "model.layers.3.eh_proj.weight": torch.ones(2)}, path / "model.safetensors")
    return path


def test_layers_that_predict_ahead_are_not_loaded(family: Family, tmp_path: Path) -> None:
    path = with_a_layer_that_predicts_ahead(family, tmp_path, num_nextn_predict_layers=1)
    loaded = family.make_bridge().build(str(path), dtype="float32", init="pretrained", seed=0)
    assert len(loaded.model.layers) == 3
    assert same_bits(loaded.state_dict(), family.build(tmp_path).state_dict())


def test_a_layer_too_many_that_the_config_does_not_announce_is_refused(family: Family, tmp_path: Path) -> None:
    path = with_a_layer_that_predicts_ahead(family, tmp_path, num_nextn_predict_layers=0)
    with pytest.raises(ConfigError, match=r"does not fill .*: unexpected_keys: .*model\.layers\.3\."):
        family.make_bridge().build(str(path), dtype="float32", init="pretrained", seed=0)
