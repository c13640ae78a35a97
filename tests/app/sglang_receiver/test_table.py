"""The table says what lies in memory, rearranged parameters included."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from miles_core.app.sglang_receiver.rearranged import rearranged_names
from miles_core.app.sglang_receiver.table import table_of, tensors_of
from miles_core.types import Shard


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w13_weight = torch.nn.Parameter(torch.zeros(2, 4, 3))
        self.w2_weight = torch.nn.Parameter(torch.zeros(2, 3, 2))
        self.other = torch.nn.Parameter(torch.zeros(3))
        self.register_buffer("kept", torch.zeros(2))
        self.register_buffer("computed", torch.zeros(2), persistent=False)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(4, 3)
        self.layer = Layer()
        self.lm_head = self.embed


def test_every_parameter_and_persistent_buffer_is_listed_and_shared_storage_once() -> None:
    table = table_of(tensors_of(Model()), Shard(tp_rank=1, tp_size=2), ())
    shares = {row.name: row.shares for row in table.parameters}
    assert shares == {
        "embed.weight": None,
        "layer.w13_weight": None,
        "layer.w2_weight": None,
        "layer.other": None,
        "layer.kept": None,
        "lm_head.weight": "embed.weight",
    }
    assert (table.naming, table.shard) == ("sglang", Shard(tp_rank=1, tp_size=2))


def test_what_is_packed_for_matrix_units_is_not_contiguous() -> None:
    model = Model()
    model.layer.use_intel_amx_backend = True  # type: ignore[assignment]
    moved = rearranged_names(model, moved=False)
    rows = table_of(tensors_of(model), Shard(), moved).parameters
    assert {row.name for row in rows if not row.contiguous} == {
        "layer.w13_weight", "layer.w2_weight", "layer.other",
    }  # fmt: skip


def test_interleaved_or_moved_experts_are_named_and_nothing_else() -> None:
    model = Model()
    experts = {"layer.w13_weight", "layer.w2_weight"}
    assert rearranged_names(model, moved=False) == set()
    assert rearranged_names(model, moved=True) == experts
    model.layer.quant_method = SimpleNamespace(w13_swiglu_interleaved=True)  # type: ignore[assignment]
    assert rearranged_names(model, moved=False) == experts


def test_tensors_are_the_live_ones() -> None:
    model = Model()
    tensors_of(model)["layer.other"].fill_(2.0)
    assert model.layer.other.tolist() == [2.0, 2.0, 2.0]
