"""The Llama bridge builds what checkpoints of this architecture hold, under their own names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open

from miles_core.api import ConfigError, ModelBridge, PluginContext
from miles_core.lib.layout import build_layout, parameter_table, view
from miles_plugins.bridges.llama import Llama

SIZES = {
    "vocab_size": 48,
    "hidden_size": 18,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
IDS = torch.tensor([[1, 2, 3, 5, 8, 13]])
bridge = Llama(None, PluginContext())


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def llama_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory with a config and no weights."""
    config = transformers.LlamaConfig(
        **SIZES, tie_word_embeddings=request.param, architectures=["LlamaForCausalLM"], bos_token_id=1, eos_token_id=2
    )
    config.save_pretrained(tmp_path)
    return tmp_path


def build(path: Path, **settings: Any) -> Any:
    return bridge.build(str(path), **{"dtype": "float32", "init": "random", "seed": 0, **settings})


def is_tied(path: Path) -> bool:
    return bool(json.loads((path / "config.json").read_text())["tie_word_embeddings"])


def test_it_is_a_model_bridge_of_a_dense_architecture(llama_dir: Path) -> None:
    assert isinstance(bridge, ModelBridge)
    assert bridge.routing_spec(json.loads((llama_dir / "config.json").read_text())) is None
    assert bridge.replay_points(build(llama_dir)) == ()


def test_random_weights_follow_the_seed(llama_dir: Path) -> None:
    one, same, other = (build(llama_dir, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_model_loads_with_the_logits_of_plain_transformers(llama_dir: Path, tmp_path: Path, dtype: str) -> None:
    model = build(llama_dir, dtype=dtype)
    model.save_pretrained(tmp_path / "saved")
    loaded = build(tmp_path / "saved", dtype=dtype, init="pretrained", seed=7)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=dtype)
    assert {parameter.dtype for parameter in loaded.parameters()} == {getattr(torch, dtype)}
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == is_tied(llama_dir)
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, model(IDS).logits)
        assert torch.equal(loaded(IDS).logits, plain(IDS).logits)


def test_the_layout_has_the_names_shapes_and_values_of_the_saved_checkpoint(llama_dir: Path, tmp_path: Path) -> None:
    model = build(llama_dir)
    model.save_pretrained(tmp_path / "saved")
    tensors = model.state_dict()
    config = json.loads((llama_dir / "config.json").read_text())
    layout = build_layout(bridge.mapping, parameter_table(tensors), config)
    with safe_open(tmp_path / "saved" / "model.safetensors", framework="pt") as saved:
        assert {placement.tensor.name for placement in layout.placements} == set(saved.keys())
        for placement in layout.placements:
            assert torch.equal(view(tensors, placement), saved.get_tensor(placement.tensor.name))
    assert ("lm_head.weight" in {placement.tensor.name for placement in layout.placements}) != is_tied(llama_dir)
    assert layout.unclaimed == ()


def test_another_architecture_is_refused(llama_dir: Path) -> None:
    file = llama_dir / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": ["MistralForCausalLM"]}))
    with pytest.raises(ConfigError, match=r"builds LlamaForCausalLM; .* names architectures \['MistralForCausalLM'\]"):
        build(llama_dir)


def test_the_bridge_needs_no_torch_to_say_what_is_routed() -> None:
    code = """
import sys
from miles_core.api import PluginContext
from miles_plugins.bridges.llama import Llama
Llama(None, PluginContext()).routing_spec({})
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
