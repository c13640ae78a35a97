"""A model directory is read with its bridge, or refused with file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from miles_core.app.wiring import read_model
from miles_core.errors import ConfigError, WeightSyncError
from miles_core.plugins.hub import Hub
from miles_core.types import Layout, Parameter, ParameterTable, Placement, TensorSpec


def change(model: Path, **values: Any) -> None:
    config = json.loads((model / "config.json").read_text()) | values
    (model / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def test_the_facts_of_a_model_are_those_of_its_config_json(model: Path) -> None:
    change(model, vocab_size=41, max_position_embeddings=77)
    facts = read_model(Hub.discover(), model)
    assert (facts.bridge_name, facts.vocab_size, facts.context_length) == ("Qwen3MoeForCausalLM", 41, 77)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{broken", "must be JSON"), ("[1]", "must hold a JSON object; got list"), (b"\xff", "must be JSON.*utf-8")],
)
def test_a_broken_config_json_is_named(model: Path, text: str | bytes, message: str) -> None:
    (model / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=rf"config\.json {message}"):
        read_model(Hub.discover(), model)


@pytest.mark.parametrize("key", ["vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize(("value", "shown"), [(..., "None"), ("many", "'many'"), (0, "0")])
def test_a_size_that_every_run_needs_is_asked_for_by_name(model: Path, key: str, value: Any, shown: str) -> None:
    change(model, **{key: value})
    with pytest.raises(ConfigError, match=rf"config\.json: {key} must be a positive integer; got {shown}"):
        read_model(Hub.discover(), model)


@pytest.mark.parametrize("architectures", [..., [], "Qwen3MoeForCausalLM", [7]])
def test_a_config_json_without_an_architecture_needs_a_bridge(model: Path, architectures: Any) -> None:
    change(model, architectures=architectures)
    with pytest.raises(ConfigError, match="must name an architecture") as caught:
        read_model(Hub.discover(), model)
    assert "model.bridge" in (caught.value.remedy or "")
    assert read_model(Hub.discover(), model, "Qwen3MoeForCausalLM").vocab_size > 0


def test_layouts_of_engines_follow_the_naming_that_they_report(model: Path) -> None:
    facts = read_model(Hub.discover(), model)
    spec = TensorSpec("model.norm.weight", "float32", (4,))
    source = Layout((Placement(spec, spec.whole, "model.norm.weight", 0),))
    for naming in ("torch", "sglang"):
        table = ParameterTable((Parameter("model.norm.weight", "bfloat16", (4,)),), naming=naming)
        (placement,) = facts.layout_of(table, source).placements
        assert placement.tensor == TensorSpec("model.norm.weight", "bfloat16", (4,))
    with pytest.raises(
        WeightSyncError, match="bridge Qwen3MoeForCausalLM does not say how vllm names .* torch, sglang"
    ):
        facts.layout_of(ParameterTable((), naming="vllm"), source)
