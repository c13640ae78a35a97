"""Tables of tensors, and views into them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from miles_core.lib.layout import build_layout, parameter_table, view
from miles_core.types import Layout, NameMapping, Parameter, ParameterTable, Part, Placement, Rule, Shard
from miles_plugins.bridges.qwen3_moe import Qwen3Moe

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]
SIZES = {
    "vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "mlp_only_layers": [0]}


def test_a_table_says_type_shape_sharing_and_whether_elements_lie_without_gaps() -> None:
    memory = torch.zeros(2, 3, dtype=torch.bfloat16)
    tensors = {"a": memory, "b": memory, "t": torch.zeros(2, 3).t(), "none": torch.zeros(0), "nil": torch.zeros(0)}
    shard = Shard(tp_rank=1, tp_size=2)
    table = parameter_table(tensors, shard=shard, naming="sglang")
    assert table == ParameterTable(
        (
            Parameter("a", "bfloat16", (2, 3)),
            Parameter("b", "bfloat16", (2, 3), shares="a"),
            Parameter("t", "float32", (3, 2), contiguous=False),
            Parameter("none", "float32", (0,)),
            Parameter("nil", "float32", (0,)),
        ),
        shard,
        "sglang",
    )
    assert ParameterTable.from_json(table.to_json()) == table


def test_a_view_of_the_beginning_of_another_tensor_is_part_of_it_though_it_comes_first() -> None:
    whole = torch.zeros(4, 2)
    table = parameter_table({"rows": whole[:2], "whole": whole, "again": whole})
    assert [(row.name, row.shares) for row in table.parameters] == [
        ("rows", "whole"),
        ("whole", None),
        ("again", "whole"),
    ]


def test_tensors_without_memory_share_none() -> None:
    with torch.device("meta"):
        table = parameter_table({"a": torch.zeros(2), "b": torch.zeros(2)})
    assert [row.shares for row in table.parameters] == [None, None]


def tensors_of_a_model():
    dims, dtypes = st.integers(0, 4), st.sampled_from(DTYPES)
    pair = st.tuples(dims, st.integers(0, 3).map(lambda half: 2 * half), dims)
    shapes = {"pair": pair, "plain": st.lists(dims, max_size=3).map(tuple), "turned": st.tuples(dims, dims)}
    return st.fixed_dictionaries({name: zeros(shape, dtypes) for name, shape in shapes.items()})


def zeros(shapes, dtypes):
    return st.builds(lambda shape, dtype: torch.zeros(shape, dtype=dtype), shapes, dtypes)


MIXED = NameMapping(
    (
        Rule("pair", (Part("{expert}.gate"), Part("{expert}.up")), stacked=True),
        Rule("turned", (Part("turned", transpose=True),)),
    )
)


@given(tensors_of_a_model())
def test_views_of_all_types_and_sizes_write_through_to_all_bytes(tensors) -> None:
    layout = build_layout(MIXED, parameter_table(tensors), {})
    for placement in layout.placements:
        box = view(tensors, placement)
        assert tuple(box.shape) == placement.shape == placement.tensor.shape
        box.fill_(1)
        assert Placement.from_json(placement.to_json()) == placement
    assert layout.unclaimed == ()
    assert all(tensor.to(torch.float64).sum() == math.prod(tensor.shape) for tensor in tensors.values())
    assert sum(placement.nbytes for placement in layout.placements) == sum(t.nbytes for t in tensors.values())


def test_a_view_of_a_tensor_that_begins_inside_its_storage_is_of_that_tensor() -> None:
    part = torch.arange(6.0)[2:]
    (placement,) = build_layout(NameMapping(), parameter_table({"w": part}), {}).placements
    assert torch.equal(view({"w": part}, placement), part)


def test_writing_to_a_view_leaves_no_trace_in_the_graph() -> None:
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    (placement,) = build_layout(NameMapping(), parameter_table({"w": weight}), {}).placements
    view({"w": weight}, placement).fill_(3)
    assert weight.tolist() == [[3, 3], [3, 3]]
    assert weight.grad_fn is None


def built(family: str, **settings):
    config = getattr(transformers, f"{family}Config")(**SIZES, **(EXPERTS if family == "Qwen3Moe" else {}), **settings)
    with torch.random.fork_rng(devices=[]):
        return getattr(transformers, f"{family}ForCausalLM")._from_config(config, dtype=torch.float32)


def layout_of(model) -> Layout:
    return build_layout(Qwen3Moe.mapping, parameter_table(model.state_dict()), model.config.to_dict())


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("family", ["Qwen3", "Qwen3Moe"])
def test_names_shapes_and_values_are_those_that_save_pretrained_writes(tmp_path: Path, family: str, tie: bool) -> None:
    model = built(family, tie_word_embeddings=tie)
    layout = layout_of(model)
    model.save_pretrained(tmp_path)
    tensors = model.state_dict()
    placements = {placement.tensor.name: placement for placement in layout.placements}
    with safe_open(tmp_path / "model.safetensors", "pt") as saved:
        assert placements.keys() == set(saved.keys())
        for name, placement in placements.items():
            assert torch.equal(view(tensors, placement), saved.get_tensor(name)), name
    assert layout.unclaimed == ()
    assert ("lm_head.weight" in placements) is not tie


def test_a_tied_parameter_may_be_listed_or_left_out() -> None:
    model = built("Qwen3", tie_word_embeddings=True)
    once = parameter_table(dict(model.named_parameters()))
    assert build_layout(Qwen3Moe.mapping, once, {"tie_word_embeddings": True}) == layout_of(model)
