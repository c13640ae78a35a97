"""The bridge of docs/bridges.md works: loaded from the text, through the hub."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from safetensors import safe_open

from miles_core.api import ModelBridge, PluginContext, RoutingSpec
from miles_core.lib.layout import build_layout, parameter_table
from miles_core.plugins.hub import Hub
from miles_core.train.checkpoint_names import by_checkpoint_name

from .conftest import read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZES = {
    "vocab_size": 39,
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}


@pytest.fixture
def bridge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, text in read("docs/bridges.md").files("python").items():
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    use = "my_bridges:Olmoe"
    hub = Hub.discover()
    yield hub.create("model_bridges", use, hub.configure("model_bridges", use), PluginContext())
    sys.modules.pop("my_bridges", None)


def test_the_bridge_builds_names_and_replays(bridge: Any, tmp_path: Path) -> None:
    transformers.OlmoeConfig(**SIZES, architectures=["OlmoeForCausalLM"]).save_pretrained(tmp_path)
    assert isinstance(bridge, ModelBridge)
    assert bridge.routing_spec(json.loads((tmp_path / "config.json").read_text())) == RoutingSpec(2, (0, 1), 6, 2)
    model = bridge.build(str(tmp_path), dtype="float32", init="random", seed=0)
    model.save_pretrained(tmp_path / "saved")
    named = by_checkpoint_name(bridge.mapping, model.state_dict())
    with safe_open(tmp_path / "saved" / "model.safetensors", "pt") as saved:
        assert set(saved.keys()) == named.keys()
        assert all(torch.equal(saved.get_tensor(name), tensor) for name, tensor in named.items())
    points = bridge.replay_points(model)
    assert [point.layer_id for point in points] == [0, 1]
    for point in points:
        logits, weights, indices = point.router(torch.randn(9, 16))
        assert torch.equal(point.weights(logits, indices), weights)


def test_the_mapping_of_the_page_fills_a_model_of_such_names() -> None:
    (text,) = [block for block in read("docs/bridges.md").blocks("python") if "mapping = NameMapping(" in block]
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    embed = torch.zeros(5, 4)
    tensors = {
        "model.layers.3.mlp.experts.gate_up_proj": torch.zeros(2, 6, 4),
        "model.layers.3.mlp.experts.down_proj": torch.zeros(2, 4, 3),
        "model.layers.3.mlp.gate.weight": torch.zeros(2, 4),
        "model.embed_tokens.weight": embed,
        "lm_head.weight": embed,
    }
    layout = build_layout(namespace["mapping"], parameter_table(tensors), {"tie_word_embeddings": True})
    assert layout.unclaimed == ()
    experts = [f"model.layers.3.mlp.experts.{e}.{kind}_proj.weight" for e in (0, 1) for kind in ("gate", "up", "down")]
    router, embeddings = "model.layers.3.mlp.router.weight", "model.embed_tokens.weight"
    assert sorted(layout.tensors) == sorted([*experts, router, embeddings])
    assert layout.tensors[experts[0]].shape == (3, 4)
