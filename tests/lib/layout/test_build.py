"""Layouts by rules: fused, stacked, transposed, padded, tied and divided parameters."""

from __future__ import annotations

import pytest
import torch

from miles_core.errors import WeightSyncError
from miles_core.lib.layout import build_layout, parameter_table, view
from miles_core.types import Layout, NameMapping, Part, Placement, Rule, Shard, TensorSpec

GATE_UP = Rule("{layer}.gate_up", (Part("{layer}.gate", split=0), Part("{layer}.up", split=0)))
EXPERTS = Rule(
    "{layer}.experts",
    (Part("{layer}.{expert}.gate", split=0), Part("{layer}.{expert}.up", split=0)),
    stacked=True,
)
EMBED = Rule("embed", (Part("embed", split=0),), padded=True)
TIED = NameMapping((EMBED,), {"head": "embed"})


def layout_of(mapping, tensors, config=None, *, sent=None, **shard) -> Layout:
    table = parameter_table(tensors, shard=Shard(**shard))
    specs = None if sent is None else {name: TensorSpec(name, "float32", shape) for name, shape in sent.items()}
    return build_layout(mapping, table, config or {}, specs)


def boxes(layout: Layout) -> list[tuple]:
    return [(p.label, p.parameter, p.offset, p.strides) for p in layout.placements]


def test_a_parameter_that_no_rule_names_is_its_checkpoint_tensor() -> None:
    spec = TensorSpec("norm", "bfloat16", (3,))
    layout = layout_of(NameMapping((GATE_UP,)), {"norm": torch.zeros(3, dtype=torch.bfloat16)})
    assert layout == Layout((Placement(spec, spec.whole, "norm", 0),))


def test_fused_parts_lie_one_after_the_other_in_sizes_that_the_checkpoint_says() -> None:
    layout = layout_of(
        NameMapping((GATE_UP,)), {"0.gate_up": torch.zeros(3, 2)}, sent={"0.gate": (1, 2), "0.up": (2, 2)}
    )
    assert boxes(layout) == [("0.gate", "0.gate_up", 0, None), ("0.up", "0.gate_up", 8, None)]


def test_without_the_checkpoints_shapes_parts_are_equal() -> None:
    layout = layout_of(NameMapping((GATE_UP,)), {"0.gate_up": torch.zeros(4, 2)})
    assert [placement.tensor.shape for placement in layout.placements] == [(2, 2), (2, 2)]


def test_parts_beside_each_other_are_strided() -> None:
    rule = Rule("both", (Part("left"), Part("right")), axis=1)
    layout = layout_of(NameMapping((rule,)), {"both": torch.zeros(3, 4)})
    assert boxes(layout) == [("left", "both", 0, (4, 1)), ("right", "both", 8, (4, 1))]


def test_a_transposed_part_is_the_checkpoint_tensor_seen_through_its_strides() -> None:
    tensors = {"w": torch.arange(6.0).reshape(2, 3)}
    (placement,) = layout_of(NameMapping((Rule("w", (Part("w", transpose=True),)),)), tensors).placements
    assert (placement.tensor.shape, placement.strides) == ((3, 2), (1, 3))
    assert torch.equal(view(tensors, placement), tensors["w"].t())


def test_a_stack_of_an_expert_rank_begins_with_its_first_expert() -> None:
    layout = layout_of(NameMapping((EXPERTS,)), {"0.experts": torch.zeros(2, 2, 3)}, ep_rank=1, ep_size=4)
    assert boxes(layout) == [
        ("0.2.gate", "0.experts", 0, None), ("0.2.up", "0.experts", 12, None),
        ("0.3.gate", "0.experts", 24, None), ("0.3.up", "0.experts", 36, None),
    ]  # fmt: skip


def test_experts_are_divided_by_their_own_ranks_and_all_else_by_tensor_parallelism() -> None:
    layout = layout_of(
        NameMapping((EXPERTS, GATE_UP)),
        {"0.experts": torch.zeros(1, 4, 3), "0.gate_up": torch.zeros(2, 3)},
        sent={"0.0.gate": (4, 3), "0.0.up": (4, 3), "0.gate": (4, 3), "0.up": (4, 3)},
        tp_rank=3, tp_size=4, etp_rank=1, etp_size=2,
    )  # fmt: skip
    assert [box[0] for box in boxes(layout)] == [
        "0.0.gate[2:4, 0:3]", "0.0.up[2:4, 0:3]", "0.gate[3:4, 0:3]", "0.up[3:4, 0:3]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rank", "label", "padding"),
    [(0, "embed[0:4, 0:2]", 0), (1, "embed[4:5, 0:2]", 24), (2, "embed[5:5, 0:2]", 32)],
)
def test_rows_that_round_the_vocabulary_up_are_padding(rank: int, label: str, padding: int) -> None:
    layout = layout_of(
        NameMapping((EMBED,)), {"embed": torch.zeros(4, 2)}, sent={"embed": (5, 2)}, tp_rank=rank, tp_size=4
    )
    assert boxes(layout) == [(label, "embed", 0, None)]
    assert layout.padding == padding


@pytest.mark.parametrize("config", [{"tie_word_embeddings": True}, {}])
def test_tied_parameters_that_share_memory_are_one(config) -> None:
    embed = torch.zeros(4, 2)
    layout = layout_of(TIED, {"embed": embed, "head": embed}, config)
    assert (boxes(layout), layout.unclaimed) == ([("embed", "embed", 0, None)], ())


def test_tied_parameters_with_memory_of_their_own_are_unclaimed() -> None:
    tensors = {"embed": torch.zeros(4, 2), "head": torch.zeros(4, 2)}
    layout = layout_of(TIED, tensors, {"tie_word_embeddings": True})
    assert layout.unclaimed == ("head: must share the memory of embed, as the model's config ties them",)
    untied = layout_of(TIED, tensors, {"tie_word_embeddings": False})
    assert [box[0] for box in boxes(untied)] == ["embed", "head"]


def test_the_last_pipeline_stage_fills_its_copy_from_what_it_is_tied_to() -> None:
    layout = layout_of(
        TIED, {"head": torch.zeros(8, 2)}, {"tie_word_embeddings": True}, sent={"embed": (5, 2)}, pp_rank=1, pp_size=2
    )
    assert boxes(layout) == [("embed", "head", 0, None)]
    assert layout.padding == 24


def test_the_first_rule_that_fits_holds() -> None:
    rules = (Rule("a.{layer}", (Part("first.{layer}"),)), Rule("a.{kind}", (Part("second.{kind}"),)))
    layout = layout_of(NameMapping(rules), {"a.1": torch.zeros(1), "a.x": torch.zeros(1)})
    assert [box[0] for box in boxes(layout)] == ["first.1", "second.x"]


QKV = Rule("qkv", (Part("q", split=0, units="heads"), Part("k", split=0, units="kv_heads")))


@pytest.mark.parametrize(
    ("rules", "tensor", "sent", "shard", "reason"),
    [
        ((GATE_UP,), torch.zeros(3, 2), None, {}, r"0\.gate_up: of \[3, 2\] cannot be cut into 2 equal parts"),
        ((GATE_UP,), torch.zeros(5, 2), {"0.gate": (2, 2), "0.up": (2, 2)}, {}, "holds 5 .* dimension 0; .* fill 4"),
        ((GATE_UP,), torch.zeros(3, 2), {"0.gate": (2, 2), "0.up": (2, 2)}, {}, "holds 3 .* dimension 0; .* fill 4"),
        ((GATE_UP,), torch.zeros(4, 3), {"0.gate": (2, 2), "0.up": (2, 2)}, {}, r"\[4, 3\], in which 0\.gate \[2, 2\]"),
        ((GATE_UP,), torch.zeros(4, 2), {"0.gate": (2, 2)}, {}, r"no one sends 0\.up"),
        ((GATE_UP,), torch.zeros(2, 2), {"0.gate": (3, 2), "0.up": (3, 2)}, {"tp_size": 2}, "3 rows .* among 2 ranks"),
        ((), torch.zeros(4, 2), {"0.gate_up": (2, 2)}, {}, r"holds \[4, 2\]; its checkpoint tensor is \[2, 2\]"),
        ((), torch.zeros(2, 4).t(), None, {}, "must be contiguous"),
        ((), torch.zeros(2, dtype=torch.complex64), None, {}, "its type complex64 cannot be sent"),
        ((Rule("0.gate_up", (Part("{expert}.w"),), stacked=True),), torch.zeros(()), None, {}, "is no stack"),
    ],
    ids=[
        "unequal", "too long", "too short", "other columns", "unsent", "indivisible", "other shape", "strided", "type",
        "scalar stack",
    ],
)  # fmt: skip
def test_what_cannot_be_filled_is_unclaimed_with_the_reason(rules, tensor, sent, shard, reason) -> None:
    layout = layout_of(NameMapping(rules), {"0.gate_up": tensor}, sent=sent, **shard)
    assert layout.placements == ()
    (said,) = layout.unclaimed
    with pytest.raises(WeightSyncError, match=reason):
        raise WeightSyncError(said)


@pytest.mark.parametrize("config", [{}, {"heads": 0}, {"text_config": {"heads": "8"}}])
def test_a_count_that_the_config_lacks_is_named(config) -> None:
    layout = layout_of(
        NameMapping((QKV,)), {"qkv": torch.zeros(4, 2)}, config, sent={"q": (4, 2), "k": (4, 2)}, tp_size=2
    )
    assert layout.unclaimed == ("qkv: config.json must have the positive number heads",)


def test_counts_may_stand_in_the_text_part_of_a_config() -> None:
    layout = layout_of(
        NameMapping((QKV,)),
        {"qkv": torch.zeros(5, 2)},
        {"text_config": {"heads": 4, "kv_heads": 2}},
        sent={"q": (16, 2), "k": (2, 2)},
        tp_rank=2,
        tp_size=4,
    )
    assert [box[0] for box in boxes(layout)] == ["q[8:12, 0:2]", "k[1:2, 0:2]"]


def test_two_parameters_of_one_checkpoint_tensor_are_refused() -> None:
    mapping = NameMapping((Rule("stack", (Part("w"),)),))
    with pytest.raises(WeightSyncError, match="checkpoint tensor w is claimed by both w and stack"):
        layout_of(mapping, {"w": torch.zeros(2), "stack": torch.zeros(2)})
