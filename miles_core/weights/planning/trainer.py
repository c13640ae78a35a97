"""What each rank of a trainer would hold, divided as Megatron divides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.errors import WeightSyncError
from miles_core.lib.layout.sharding import config_count, local_experts
from miles_core.types import Layout, Placement
from miles_core.weights.planning.divide import divided

if TYPE_CHECKING:
    from collections.abc import Mapping

    from miles_core.types import Region, Shard
    from miles_core.weights.planning.grid import TrainerGrid
    from miles_core.weights.planning.model import PlannedModel
    from miles_core.weights.planning.origins import Origin

_PAD = 128
"""Megatron's ``make_vocab_size_divisible_by``, for each tensor-parallel rank."""


def trainer_layouts(model: PlannedModel, grid: TrainerGrid) -> list[Layout]:
    """By rank; ranks that hold the same have the same object.

    Megatron and SGLang divide the same dimensions, so the bridge's mapping for SGLang says which. Each box counts as a
    parameter of its own.

    Raises:
        WeightSyncError: if the model does not divide so, or the bridge has no such mapping.
    """
    if grid.ranks == grid.dp:
        return [model.layout] * grid.ranks
    experts: dict[str, int] = {}
    layers: dict[int | None, list[Origin]] = {}
    for origin in model.divided:
        if origin.expert is not None:
            experts[origin.parameter] = max(experts.get(origin.parameter, 0), origin.expert + 1)
        layers.setdefault(origin.layer, []).append(origin)
    made: dict[Shard, Layout] = {}
    layouts: list[Layout] = []
    for shard in map(grid.shard, range(grid.ranks)):
        if shard not in made:
            mine = [origin for layer in _layers(model, shard) for origin in layers.get(layer, ())]
            made[shard] = Layout(tuple(_placements(model, shard, mine, experts)), model.layout.unclaimed)
        layouts.append(made[shard])
    return layouts


def _placements(model: PlannedModel, shard: Shard, mine: list[Origin], experts: Mapping[str, int]) -> list[Placement]:
    here = {name: local_experts(shard, count) for name, count in experts.items()}
    return [
        Placement(origin.spec, _region(model, shard, origin), origin.spec.name, 0)
        for origin in mine
        if origin.expert is None or origin.expert in here[origin.parameter]
    ]


def _region(model: PlannedModel, shard: Shard, origin: Origin) -> Region:
    spec, part = origin.spec, origin.part
    if part is None:
        return spec.whole
    if origin.rounds_up:
        total = -(-spec.shape[0] // (_PAD * shard.tp_size)) * _PAD
        start = min(shard.tp_rank * total, spec.shape[0])
        return ((start, min(start + total, spec.shape[0])), *spec.whole[1:])
    return divided(part, spec, shard, model.hf_config)


def _layers(model: PlannedModel, shard: Shard) -> list[int | None]:
    """Even stages; the last one has fewer layers where they do not divide, what is before the first and after the last.

    Raises:
        WeightSyncError: if no layer would be left for it.
    """
    count = config_count(model.hf_config, "num_hidden_layers")
    size = -(-count // shard.pp_size)
    if count - size * (shard.pp_size - 1) < 1:
        raise WeightSyncError(
            f"{count} layers cannot fill {shard.pp_size} pipeline stages of {size}",
            remedy="Choose fewer stages for the trainer, or a number that divides the layers.",
        )
    numbers: list[int | None] = list(range(shard.pp_rank * size, min((shard.pp_rank + 1) * size, count)))
    first: list[int | None] = [-1] if shard.pp_rank == 0 else []
    last: list[int | None] = [None] if shard.pp_rank == shard.pp_size - 1 else []
    return first + numbers + last
