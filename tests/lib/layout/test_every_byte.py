"""Random models on random parallel layouts: every byte of every rank is claimed once, and by the right element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st

from miles_core.lib.layout import build_layout, parameter_table, view
from miles_core.types import NameMapping, Part, Rule, Shard, TensorSpec

Tensors = dict[str, torch.Tensor]


@dataclass
class Piece:
    """A rule, its checkpoint tensors by name, and the parameter that a rank makes of them."""

    rule: Rule | None
    name: str
    shapes: dict[str, tuple[int, ...]]
    made: Callable[[Tensors, Shard], torch.Tensor]
    counts: dict[str, int]


def chunk(tensor: torch.Tensor, dim: int, rank: int, size: int) -> torch.Tensor:
    return tensor.chunk(size, dim)[rank] if tensor.shape[dim] else tensor


def fused(name: str, parts: list[int], columns: int, sizes: Shard) -> Piece:
    names = [f"{name}.part{i}" for i in range(len(parts))]
    rule = Rule(name, tuple(Part(part, split=0) for part in names))
    shapes = {part: (rows * sizes.tp_size, columns) for part, rows in zip(names, parts, strict=True)}

    def made(tensors: Tensors, shard: Shard) -> torch.Tensor:
        return torch.cat([chunk(tensors[part], 0, shard.tp_rank, shard.tp_size) for part in names])

    return Piece(rule, name, shapes, made, {})


def beside(name: str, parts: list[int], columns: int, sizes: Shard) -> Piece:
    """Transposed parts beside each other."""
    names = [f"{name}.part{i}" for i in range(len(parts))]
    rule = Rule(name, tuple(Part(part, split=0, transpose=True) for part in names), axis=1)
    shapes = {part: (rows * sizes.tp_size, columns) for part, rows in zip(names, parts, strict=True)}

    def made(tensors: Tensors, shard: Shard) -> torch.Tensor:
        return torch.cat([chunk(tensors[part], 0, shard.tp_rank, shard.tp_size).t() for part in names], 1)

    return Piece(rule, name, shapes, made, {})


def columns_of(name: str, parts: list[int], columns: int, sizes: Shard) -> Piece:
    rule = Rule(name, (Part(f"{name}.w", split=1),))

    def made(tensors: Tensors, shard: Shard) -> torch.Tensor:
        return chunk(tensors[f"{name}.w"], 1, shard.tp_rank, shard.tp_size)

    return Piece(rule, name, {f"{name}.w": (columns, parts[0] * sizes.tp_size)}, made, {})


def heads(name: str, parts: list[int], columns: int, sizes: Shard) -> Piece:
    """Fewer heads than ranks: neighbours share one."""
    count, rows = 2 ** (parts[0] % 3), parts[-1]
    rule = Rule(name, (Part(f"{name}.w", split=0, units=f"{name}.count"),))

    def made(tensors: Tensors, shard: Shard) -> torch.Tensor:
        of = min(count, shard.tp_size)
        return chunk(tensors[f"{name}.w"], 0, shard.tp_rank * of // shard.tp_size, of)

    return Piece(rule, name, {f"{name}.w": (count * rows, columns)}, made, {f"{name}.count": count})


def stack(name: str, parts: list[int], columns: int, sizes: Shard, *, swap: bool = False) -> Piece:
    local = parts[0]
    experts = range(local * sizes.ep_size)
    kinds = [f"kind{i}" for i in range(len(parts))]
    rule = Rule(
        name,
        tuple(Part(f"{name}.{{expert}}.{kind}", split=0, transpose=swap) for kind in kinds),
        axis=int(swap),
        stacked=True,
    )
    shapes = {
        f"{name}.{e}.{k}": (n * sizes.etp_size, columns) for e in experts for k, n in zip(kinds, parts, strict=True)
    }

    def made(tensors: Tensors, shard: Shard) -> torch.Tensor:
        mine = [expert for expert in experts if expert // local == shard.ep_rank]
        entries = [
            torch.cat([chunk(tensors[f"{name}.{e}.{k}"], 0, shard.etp_rank, shard.etp_size) for k in kinds])
            for e in mine
        ]
        stacked = torch.stack(entries)
        return stacked.transpose(1, 2) if swap else stacked

    return Piece(rule, name, shapes, made, {})


def swapped_stack(name: str, parts: list[int], columns: int, sizes: Shard) -> Piece:
    return stack(name, parts, columns, sizes, swap=True)


def padded(name: str, parts: list[int], columns: int, sizes: Shard) -> Piece:
    rows = sum(parts)
    mine = math.ceil(math.ceil(rows / 4) * 4 / sizes.tp_size)

    def made(tensors: Tensors, shard: Shard) -> torch.Tensor:
        full = torch.zeros(mine * shard.tp_size, columns)
        full[:rows] = tensors[f"{name}.w"]
        return full[shard.tp_rank * mine : (shard.tp_rank + 1) * mine]

    return Piece(Rule(name, (Part(f"{name}.w", split=0),), padded=True), name, {f"{name}.w": (rows, columns)}, made, {})


def padded_stack(name: str, parts: list[int], columns: int, sizes: Shard) -> Piece:
    """Experts whose two projections have rooms that are rounded up."""
    local, rows = parts[0], 2 * parts[-1] - 1
    room = math.ceil(2 * parts[-1] / sizes.etp_size)
    experts = range(local * sizes.ep_size)
    kinds = ("gate", "up")
    rule = Rule(name, tuple(Part(f"{name}.{{expert}}.{k}", split=0) for k in kinds), stacked=True, padded=True)
    shapes = {f"{name}.{e}.{k}": (rows, columns) for e in experts for k in kinds}

    def slot(tensor: torch.Tensor, shard: Shard) -> torch.Tensor:
        full = torch.zeros(room * shard.etp_size, columns)
        full[:rows] = tensor
        return full[shard.etp_rank * room : (shard.etp_rank + 1) * room]

    def made(tensors: Tensors, shard: Shard) -> torch.Tensor:
        mine = experts[shard.ep_rank * local : (shard.ep_rank + 1) * local]
        return torch.stack([torch.cat([slot(tensors[f"{name}.{e}.{k}"], shard) for k in kinds]) for e in mine])

    return Piece(rule, name, shapes, made, {})


def plain(name: str, parts: list[int], columns: int, sizes: Shard) -> Piece:
    return Piece(None, name, {name: (*parts, columns)}, lambda tensors, shard: tensors[name], {})


KINDS = [fused, beside, columns_of, heads, stack, swapped_stack, padded, padded_stack, plain]


@st.composite
def models(draw) -> tuple[list[Piece], Shard]:
    sizes = Shard(
        tp_size=draw(st.sampled_from([1, 2, 4])), ep_size=draw(st.integers(1, 3)), etp_size=draw(st.integers(1, 2))
    )
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    sizes_of = st.lists(st.integers(1, 3), min_size=1, max_size=3)
    pieces = [kind(f"p{i}", draw(sizes_of), draw(st.integers(1, 3)), sizes) for i, kind in enumerate(kinds)]
    return pieces, sizes


def ranks(sizes: Shard) -> list[Shard]:
    return [
        Shard(tp, sizes.tp_size, ep, sizes.ep_size, etp, sizes.etp_size)
        for tp, ep, etp in itertools.product(range(sizes.tp_size), range(sizes.ep_size), range(sizes.etp_size))
    ]


def numbered(pieces: list[Piece]) -> Tensors:
    """A checkpoint in which no two elements are equal."""
    tensors: Tensors = {}
    start = 1
    for piece in pieces:
        for name, shape in piece.shapes.items():
            count = math.prod(shape)
            tensors[name] = torch.arange(start, start + count, dtype=torch.float32).reshape(shape)
            start += count
    return tensors


@given(models())
def test_every_rank_gets_each_of_its_bytes_once_and_all_ranks_the_whole_checkpoint(model) -> None:
    pieces, sizes = model
    checkpoint = numbered(pieces)
    specs = {name: TensorSpec(name, "float32", tuple(tensor.shape)) for name, tensor in checkpoint.items()}
    config = {key: count for piece in pieces for key, count in piece.counts.items()}
    mapping = NameMapping(tuple(piece.rule for piece in pieces if piece.rule is not None))
    covered = {name: torch.zeros_like(tensor) for name, tensor in checkpoint.items()}
    for shard in ranks(sizes):
        expected = {piece.name: piece.made(checkpoint, shard).contiguous() for piece in pieces}
        marks = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
        live = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
        layout = build_layout(mapping, parameter_table(live, shard=shard), config, specs)
        assert layout.unclaimed == ()
        for placement in layout.placements:
            box = tuple(slice(start, stop) for start, stop in placement.region)
            view(marks, placement).add_(1)
            view(live, placement).copy_(checkpoint[placement.tensor.name][box])
            covered[placement.tensor.name][box] = 1
        for name, tensor in expected.items():
            assert torch.equal(live[name], tensor)
            assert torch.equal(marks[name], (tensor != 0).float()), "0 is padding"
        assert layout.padding == sum(4 * int((tensor == 0).sum()) for tensor in expected.values())
    assert all(bool(mark.all()) for mark in covered.values())
