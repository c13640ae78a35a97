"""Small models on paper, and plans carried out on numpy arrays."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from miles_core.api import NameMapping, Part, Rule
from miles_core.lib.layout import build_layout
from miles_core.lib.layout.build import row_major
from miles_core.types import Layout, Placement, TensorSpec
from miles_core.types.weights import ITEM_BYTES
from miles_core.weights.planning.model import PlannedModel
from miles_plugins.bridges.sglang_names import EXPERTS

if TYPE_CHECKING:
    from miles_core.weights.plan import Plan, Receiver

LAYER = "model.layers.{layer}"
TRANSPOSED = Rule(f"{LAYER}.mixer.in_out", (Part(f"{LAYER}.mixer.weight", split=0, transpose=True),), axis=1)
MAPPING = replace(EXPERTS, rules=(*EXPERTS.rules, TRANSPOSED))


def toy_model(*, layers=2, hidden=4, heads=8, kv_heads=2, experts=4, inter=8, vocab=20, dtype="int32", mapping=MAPPING):
    """A MoE model with a transposed tensor; the first layer has biases and a dense MLP."""
    hf_config = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": False,
    }
    tensors = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        tensors |= {f"{at}.self_attn.{kind}_proj.weight": (2 * kv_heads, hidden) for kind in "kv"}
        tensors |= {f"{at}.self_attn.q_proj.weight": (2 * heads, hidden), f"{at}.norm.weight": (hidden,)}
        tensors |= {f"{at}.self_attn.o_proj.weight": (hidden, 2 * heads), f"{at}.mixer.weight": (8, hidden)}
        mlps = [f"mlp.experts.{one}" for one in range(experts)] if layer else ["mlp"]
        for mlp in mlps:
            tensors |= {f"{at}.{mlp}.{kind}_proj.weight": (inter, hidden) for kind in ("gate", "up")}
            tensors |= {f"{at}.{mlp}.down_proj.weight": (hidden, inter)}
    tensors |= {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}
    specs = [TensorSpec(name, dtype, shape) for name, shape in tensors.items()]
    layout = Layout(tuple(Placement(spec, spec.whole, spec.name, 0) for spec in specs))
    mappings = {"torch": NameMapping(), "sglang": mapping}
    table = None
    return PlannedModel("ToyForCausalLM", hf_config, table, layout, mappings)


def checkpoint(model):
    """Arrays by tensor, no two elements of which are equal."""
    arrays, first = {}, 1
    for name, spec in model.layout.tensors.items():
        size = math.prod(spec.shape)
        arrays[name] = np.arange(first, first + size, dtype=spec.dtype).reshape(spec.shape)
        first += size
    return arrays


def box_of(array, region):
    return array[tuple(slice(*span) for span in region)]


class Memory:
    """The parameters of one receiver, and how often each byte was written."""

    def __init__(self, table):
        self.data = {row.name: np.zeros(row.nbytes, np.uint8) for row in table.parameters}
        self.writes = {row.name: np.zeros(row.nbytes, np.int64) for row in table.parameters}

    def view(self, placement, arrays=None):
        """The box as an array ``[*shape]`` of the parameter's type, or of anything else with an item per byte."""
        buffer = (self.data if arrays is None else arrays)[placement.parameter]
        size = ITEM_BYTES[placement.tensor.dtype]
        strides = row_major(placement.shape) if placement.strides is None else placement.strides
        if arrays is None:
            buffer = buffer[placement.offset :].view(placement.tensor.dtype)
            return np.lib.stride_tricks.as_strided(buffer, placement.shape, [size * one for one in strides])
        rows = [*(size * buffer.itemsize * one for one in strides), buffer.itemsize]
        return np.lib.stride_tricks.as_strided(buffer[placement.offset :], (*placement.shape, size), rows)

    def write(self, placement, values):
        self.view(placement)[...] = values
        self.view(placement, self.writes)[...] += 1


def carry_out(plan: Plan, arrays, sources, memories: dict[Receiver, Memory]):
    """Write what each sender holds; a sender that lacks a box is an error. Returns the bytes by sender."""
    sent = [0] * len(sources)
    held = [{(p.tensor.name, p.region) for p in layout.placements} for layout in sources]
    for stream in plan.streams:
        for row, receiver in enumerate(stream.receivers):
            for column, box in enumerate(stream.boxes):
                sender = 0 if stream.senders is None else int(stream.senders[row, column])
                assert any(
                    name == box.tensor.name
                    and all(a <= c and d <= b for (a, b), (c, d) in zip(region, box.region, strict=True))
                    for name, region in held[sender]
                ), f"rank {sender} does not hold {box.label}"
                memories[receiver].write(box, box_of(arrays[box.tensor.name], box.region))
                sent[sender] += box.nbytes
    return sent


def engine_layouts(model, group):
    from miles_core.weights.planning.tables import Tables

    tables = Tables(model, group.naming, group.dtype)
    ranks = [tables.of(group.grid.shard(rank)) for rank in range(group.grid.ranks)]
    layouts = [build_layout(model.mapping("sglang"), table, model.hf_config, model.layout.tensors) for table in ranks]
    return ranks, layouts
