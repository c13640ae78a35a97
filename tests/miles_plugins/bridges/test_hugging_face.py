from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
import transformers

from miles_core.api import ConfigError, ModelBridge, PluginContext, RoutingSpec
from miles_plugins.bridges.qwen3 import Qwen3
from miles_plugins.bridges.qwen3_moe import Qwen3Moe

SIZES = {
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
MOE_SIZES = {**SIZES, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "mlp_only_layers": [1]}
IDS = torch.tensor([[1, 2, 3, 5, 8, 13]])
moe = Qwen3Moe(None, PluginContext())
dense = Qwen3(None, PluginContext())


@pytest.fixture
def moe_dir(tmp_path):
    """A directory with a config and no weights."""
    config = transformers.Qwen3MoeConfig(**MOE_SIZES, norm_topk_prob=True, architectures=["Qwen3MoeForCausalLM"])
    config.save_pretrained(tmp_path)
    return tmp_path


def random_model(path, **settings):
    return moe.build(str(path), **{"dtype": "float32", "init": "random", "seed": 0, **settings})


def test_bridges_are_model_bridges():
    assert isinstance(moe, ModelBridge)
    assert isinstance(dense, ModelBridge)


def test_each_bridge_is_registered_under_its_architecture():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"]
    registered = project["entry-points"]["miles.model_bridges"]
    loaded = {name: EntryPoint(name, value, "miles.model_bridges").load() for name, value in registered.items()}
    assert {name: bridge.architecture for name, bridge in loaded.items()} == {name: name for name in loaded}
    assert all(hasattr(transformers, name) for name in loaded)
    assert loaded


def test_random_weights_follow_the_seed_and_leave_the_callers_generator_alone(moe_dir):
    state = torch.random.get_rng_state()
    one, same, other = (random_model(moe_dir, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_model_loads_with_the_same_logits_in_the_type_asked_for(moe_dir, tmp_path, dtype):
    model = random_model(moe_dir, dtype=dtype)
    model.save_pretrained(tmp_path / "saved")
    loaded = moe.build(str(tmp_path / "saved"), dtype=dtype, init="pretrained", seed=7)
    assert {p.dtype for p in loaded.parameters()} == {getattr(torch, dtype)}
    assert not loaded.training
    assert loaded.config._attn_implementation == "sdpa"
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, model(IDS).logits)


def test_dense_model_builds(tmp_path):
    transformers.Qwen3Config(**SIZES, architectures=["Qwen3ForCausalLM"]).save_pretrained(tmp_path)
    model = dense.build(str(tmp_path), dtype="float32", init="random", seed=0)
    assert dense.replay_points(model) == ()
    assert dense.routing_spec(model.config.to_dict()) is None
    assert moe.replay_points(model) == ()


def test_missing_directory_is_a_config_error_with_its_remedy(tmp_path):
    with pytest.raises(ConfigError, match=r"must hold a readable config\.json") as caught:
        random_model(tmp_path / "absent")
    assert "nothing is downloaded" in caught.value.remedy


@pytest.mark.parametrize("text", ["{", "[]", '{"architectures": ["LlamaForCausalLM"]}', "{}"])
def test_wrong_config_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        random_model(tmp_path)


def test_pretrained_without_weights_is_refused(moe_dir):
    with pytest.raises(ConfigError, match=r"needs \*\.safetensors files"):
        random_model(moe_dir, init="pretrained")


def test_checkpoint_that_does_not_fill_the_model_is_refused(moe_dir, tmp_path):
    random_model(moe_dir).save_pretrained(tmp_path / "saved")
    file = tmp_path / "saved" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_hidden_layers": 4}))
    with pytest.raises(ConfigError, match="does not fill Qwen3MoeForCausalLM: missing_keys"):
        random_model(tmp_path / "saved", init="pretrained")


@pytest.mark.parametrize(("key", "value"), [("dtype", "float9"), ("init", "zeros")])
def test_unknown_dtype_and_init_are_refused(moe_dir, key, value):
    with pytest.raises(ConfigError, match=f"model {key} must be one of .*; got '{value}'"):
        random_model(moe_dir, **{key: value})


@pytest.mark.parametrize(("dense_layers", "step"), [([], 1), ([1], 1), ([0], 2), (None, 2), ([0, 1, 2], 1)])
def test_routing_spec_agrees_with_the_built_model(tmp_path, dense_layers, step):
    settings = {**MOE_SIZES, "mlp_only_layers": dense_layers, "decoder_sparse_step": step}
    config = transformers.Qwen3MoeConfig(**settings, architectures=["Qwen3MoeForCausalLM"])
    config.save_pretrained(tmp_path)
    spec = moe.routing_spec(json.loads((tmp_path / "config.json").read_text()))
    points = moe.replay_points(random_model(tmp_path))
    if not points:
        assert spec is None
    else:
        assert spec == RoutingSpec(3, tuple(point.layer_id for point in points), 6, 2)


def test_routing_spec_reads_published_configs_and_names_what_is_missing():
    published = {"num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8, "mlp_only_layers": []}
    assert moe.routing_spec(published) == RoutingSpec(48, tuple(range(48)), 128, 8)
    with pytest.raises(ConfigError, match="num_experts_per_tok as an integer; got None"):
        moe.routing_spec({**published, "num_experts_per_tok": None})
    with pytest.raises(ConfigError, match="num_experts or num_local_experts"):
        moe.routing_spec({"num_hidden_layers": 2})


def test_routing_spec_and_mapping_need_no_torch():
    code = """
import sys
from miles_core.api import PluginContext
from miles_plugins.bridges.qwen3_moe import Qwen3Moe
Qwen3Moe(None, PluginContext()).routing_spec({"num_hidden_layers": 1, "num_experts": 2, "num_experts_per_tok": 1})
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replay_weights_equal_the_routers_own_for_its_own_indices(moe_dir, renormalise, dtype):
    file = moe_dir / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "norm_topk_prob": renormalise}))
    points = moe.replay_points(random_model(moe_dir, dtype=dtype))
    assert [point.layer_id for point in points] == [0, 2]
    for point in points:
        hidden = torch.randn(7, 16, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
        logits, weights, indices = point.router(hidden)
        assert torch.equal(point.weights(logits, indices), weights)
        reversed_indices = indices.flip(-1)
        assert torch.equal(point.weights(logits, reversed_indices), weights.flip(-1))


def test_replayed_experts_are_used_and_the_routers_gradient_flows(moe_dir):
    model = random_model(moe_dir)
    with torch.no_grad():
        plain = model(IDS).logits
    point = moe.replay_points(model)[0]
    forced = torch.tensor([[4, 5]]).expand(IDS.shape[1], -1)

    def replay(module, arguments, output):
        return output[0], point.weights(output[0], forced), forced

    with point.router.register_forward_hook(replay):
        logits = model(IDS).logits
    assert not torch.equal(logits, plain)
    logits.square().sum().backward()
    assert point.router.weight.grad.abs().sum() > 0
    used = point.experts.down_proj.grad.abs().sum((1, 2)) > 0
    assert used.tolist() == [False, False, False, False, True, True]
