from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from miles_core.api import NameMapping, Stack, WeightSyncError
from miles_core.types import Layout
from miles_core.weights.layout import build_layout, is_tied, view

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]
MAPPING = NameMapping(
    stacks=(
        Stack(r"(?P<p>layer\d+)\.pair", ("{p}.{expert}.gate", "{p}.{expert}.up")),
        Stack(r"(?P<p>layer\d+)\.single", ("{p}.{expert}.down",)),
    ),
    tied={"head": "embed"},
)


def model_tensors():
    dims = st.integers(0, 4)
    dtypes = st.sampled_from(DTYPES)
    pair = st.tuples(dims, st.integers(0, 3).map(lambda half: 2 * half), dims)
    plain = st.lists(dims, max_size=3).map(tuple)
    single = st.lists(dims, min_size=1, max_size=3).map(tuple)

    def named(suffix, shapes):
        tensor = st.builds(lambda shape, dtype: torch.zeros(shape, dtype=dtype), shapes, dtypes)
        names = st.sampled_from([f"layer{i}.{suffix}" for i in range(3)])
        return st.dictionaries(names, tensor, max_size=3)

    return st.tuples(named("pair", pair), named("single", single), named("plain", plain)).map(
        lambda parts: {name: tensor for part in parts for name, tensor in part.items()}
    )


@given(model_tensors())
def test_placements_cover_every_byte_of_every_parameter_exactly_once(tensors):
    layout = build_layout(MAPPING, tensors, tie_word_embeddings=False)
    ends = dict.fromkeys(tensors, 0)
    for placement in sorted(layout.placements, key=lambda p: (p.offset, p.offset + p.tensor.nbytes)):
        assert placement.offset == ends[placement.parameter]
        ends[placement.parameter] += placement.tensor.nbytes
    # A stack of no experts has no tensors and no bytes, and cannot be updated by name.
    assert set(layout.unclaimed) == {n for n, t in tensors.items() if "plain" not in n and t.shape[0] == 0}
    assert ends == {name: tensor.nbytes for name, tensor in tensors.items()}
    assert Layout.from_json(layout.to_json()) == layout


@given(model_tensors())
def test_views_write_through_to_their_bytes(tensors):
    layout = build_layout(MAPPING, tensors, tie_word_embeddings=False)
    for placement in layout.placements:
        view(tensors, placement).fill_(1)
        assert tuple(view(tensors, placement).shape) == placement.tensor.shape
    assert all(tensor.to(torch.float64).sum() == math.prod(tensor.shape) for tensor in tensors.values())


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("family", ["Qwen3", "Qwen3Moe"])
def test_names_shapes_and_values_are_those_that_save_pretrained_writes(tiny, layout_of, tmp_path, family, tie):
    settings = {"mlp_only_layers": [0]} if family == "Qwen3Moe" else {}
    model = tiny(family, tie_word_embeddings=tie, **settings)
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


def test_tied_parameter_may_be_listed_or_left_out(tiny, layout_of):
    model = tiny("Qwen3", tie_word_embeddings=True)
    mapping = NameMapping(tied={"lm_head.weight": "model.embed_tokens.weight"})
    once = build_layout(mapping, dict(model.named_parameters()), tie_word_embeddings=True)
    assert once == layout_of(model)
    assert is_tied(mapping, model.state_dict())
    assert not is_tied(mapping, tiny("Qwen3").state_dict())


def test_tied_parameter_with_memory_of_its_own_is_refused():
    tensors = {"embed": torch.zeros(2, 2), "head": torch.zeros(2, 2)}
    with pytest.raises(WeightSyncError, match="head must share the memory of embed"):
        build_layout(MAPPING, tensors, tie_word_embeddings=True)
    assert len(build_layout(MAPPING, tensors, tie_word_embeddings=False).placements) == 2


def test_stack_that_does_not_divide_into_its_parts_is_unclaimed():
    layout = build_layout(MAPPING, {"layer0.pair": torch.zeros(2, 3, 2)}, tie_word_embeddings=False)
    assert layout == Layout((), ("layer0.pair",))


def test_parameter_that_is_not_contiguous_is_refused():
    with pytest.raises(WeightSyncError, match="parameter w must be contiguous"):
        build_layout(NameMapping(), {"w": torch.zeros(2, 3).t()}, tie_word_embeddings=False)


def test_two_parameters_with_one_checkpoint_name_are_refused():
    mapping = NameMapping(stacks=(Stack(r"stack", ("w",)),))
    tensors = {"w": torch.zeros(2), "stack": torch.zeros(1, 2)}
    with pytest.raises(WeightSyncError, match="checkpoint tensor w is claimed by both w and stack"):
        build_layout(mapping, tensors, tie_word_embeddings=False)
