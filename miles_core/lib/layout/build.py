"""Layouts: which bytes of which parameter hold which box of a checkpoint tensor, made from a bridge's mapping."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from miles_core.errors import WeightSyncError
from miles_core.lib.layout.names import fill_name, match_name
from miles_core.lib.layout.sharding import shard_region
from miles_core.types import Layout, Placement, TensorSpec
from miles_core.types.weights import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from miles_core.types import NameMapping, Parameter, ParameterTable, Part, Region, Rule, Shard


def build_layout(
    mapping: NameMapping,
    table: ParameterTable,
    hf_config: Mapping[str, Any],
    tensors: Mapping[str, TensorSpec] | None = None,
) -> Layout:
    """Where a rank holds the checkpoint tensors.

    ``tensors`` gives the checkpoint's shapes, without which each parameter is cut into equal parts that are whole. A
    parameter that the parts do not fill is ``unclaimed``, with the reason.

    Raises:
        WeightSyncError: if two parameters claim one box, or the mapping and the config contradict each other.
    """
    placements: list[Placement] = []
    unclaimed: list[str] = []
    padding = 0
    tied = dict(mapping.tied or {}) if _is_tied(mapping, table, hf_config) else {}
    here = {parameter.name for parameter in table.parameters}
    facts = _Facts(table, hf_config, tensors)
    for parameter in table.parameters:
        # the last pipeline stage has a copy of what is tied to the first
        name = tied.get(parameter.name, parameter.name)
        if parameter.shares is not None:
            continue
        if name != parameter.name and name in here:
            unclaimed.append(f"{parameter.name}: must share the memory of {name}, as the model's config ties them")
            continue
        try:
            claimed, pads = _claimed(mapping, name, parameter, facts)
        except _UnfilledError as error:
            unclaimed.append(f"{parameter.name}: {error}")
            continue
        placements += claimed
        padding += pads
    _check_unique(placements)
    return Layout(tuple(placements), tuple(unclaimed), padding)


class _UnfilledError(Exception):
    """Why a parameter cannot be filled."""


class _Facts:
    """What placements depend on beside the parameter."""

    def __init__(
        self, table: ParameterTable, hf_config: Mapping[str, Any], tensors: Mapping[str, TensorSpec] | None
    ) -> None:
        self.shard = table.shard
        self.hf_config = hf_config
        self.tensors = tensors

    def spec(self, name: str, dtype: str, equal: tuple[int, ...]) -> TensorSpec:
        """The checkpoint tensor as the parameter's type; of shape ``equal`` if no one says otherwise."""
        if self.tensors is None:
            return TensorSpec(name, dtype, equal)
        found = self.tensors.get(name)
        if found is None:
            raise _UnfilledError(f"no one sends {name}")
        return TensorSpec(name, dtype, found.shape)


def _is_tied(mapping: NameMapping, table: ParameterTable, hf_config: Mapping[str, Any]) -> bool:
    """Some configs leave the key out; then the model tells."""
    said = hf_config.get("tie_word_embeddings")
    if said is not None:
        return bool(said)
    return any(
        parameter.shares is not None and parameter.name in (mapping.tied or {}) for parameter in table.parameters
    )


def _claimed(mapping: NameMapping, name: str, parameter: Parameter, facts: _Facts) -> tuple[list[Placement], int]:
    """The placements that fill the parameter, which is called ``name``, and bytes of padding."""
    if parameter.dtype not in ITEM_BYTES:
        raise _UnfilledError(f"its type {parameter.dtype} cannot be sent")
    if not parameter.contiguous:
        raise _UnfilledError("its elements must be contiguous to be updated in place")
    for rule in mapping.rules:
        groups = match_name(rule.parameter, name)
        if groups is not None:
            return _ruled(rule, groups, parameter, facts)
    spec = facts.spec(name, parameter.dtype, parameter.shape)
    if spec.shape != parameter.shape:
        raise _UnfilledError(f"holds {list(parameter.shape)}; its checkpoint tensor is {list(spec.shape)}")
    return [Placement(spec, spec.whole, parameter.name, 0)], 0


def _ruled(rule: Rule, groups: Mapping[str, str], parameter: Parameter, facts: _Facts) -> tuple[list[Placement], int]:
    if not rule.stacked:
        return _entry(rule, groups, parameter, parameter.shape, 0, facts)
    if not parameter.shape:
        raise _UnfilledError("is no stack")
    entry = parameter.shape[1:]
    step = math.prod(entry) * ITEM_BYTES[parameter.dtype]
    first = facts.shard.ep_rank * parameter.shape[0]
    filled: list[Placement] = []
    padding = 0
    for index in range(parameter.shape[0]):
        named = {**groups, "expert": str(first + index)}
        placements, pads = _entry(rule, named, parameter, entry, index * step, facts)
        filled += placements
        padding += pads
    return filled, padding


def _entry(
    rule: Rule,
    groups: Mapping[str, str],
    parameter: Parameter,
    shape: tuple[int, ...],
    offset: int,
    facts: _Facts,
) -> tuple[list[Placement], int]:
    """The parts of a parameter, or of one entry of a stack: an array of ``shape`` that begins at byte ``offset``."""
    strides = row_major(shape)
    size = ITEM_BYTES[parameter.dtype]
    placements: list[Placement] = []
    at = filled = 0
    for part in rule.parts:
        spec, region = _part(rule, part, groups, parameter, shape, facts)
        box = tuple(stop - start for start, stop in region)
        held = swapped(box) if part.transpose else box
        slot = _slot(rule, shape) if rule.padded else _cut(shape, rule.axis, held)
        if len(held) != len(shape) or not (rule.padded or held == slot):
            raise _UnfilledError(f"holds {list(shape)}, in which {spec.name} {list(box)} does not lie")
        along = swapped(strides) if part.transpose else strides
        packed = None if is_packed(box, along) else along
        start = offset + (at * strides[rule.axis] if shape else 0) * size
        placements.append(Placement(spec, region, parameter.name, start, packed))
        at += slot[rule.axis] if shape else 1
        filled += math.prod(box)
    if shape and at != shape[rule.axis]:
        raise _UnfilledError(f"holds {shape[rule.axis]} along dimension {rule.axis}; its parts fill {at}")
    return placements, (math.prod(shape) - filled) * size


def _cut(shape: tuple[int, ...], axis: int, held: tuple[int, ...]) -> tuple[int, ...]:
    """The room of a part that is as long along ``axis`` as what it holds."""
    return (*shape[:axis], *held[axis : axis + 1], *shape[axis + 1 :])


def _slot(rule: Rule, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The room of one part in a padded entry, where all parts have the same, as the parameter holds it."""
    count = len(rule.parts)
    if not shape or shape[rule.axis] % count:
        raise _UnfilledError(f"of {list(shape)} cannot be cut into {count} equal parts")
    return tuple(n // count if d == rule.axis else n for d, n in enumerate(shape))


def _part(
    rule: Rule, part: Part, groups: Mapping[str, str], parameter: Parameter, shape: tuple[int, ...], facts: _Facts
) -> tuple[TensorSpec, Region]:
    """One checkpoint tensor of an entry, and the box of it that this rank has."""
    name = fill_name(part.checkpoint, groups)
    spec = facts.spec(name, parameter.dtype, _equal(rule, part, shape) if facts.tensors is None else ())
    expert = "{expert}" in part.checkpoint
    if rule.padded and facts.tensors is not None:
        return spec, _padded_region(spec, part, _slot(rule, shape), facts.shard, expert=expert)
    try:
        return spec, shard_region(part, spec, facts.shard, facts.hf_config, expert=expert)
    except WeightSyncError as error:
        raise _UnfilledError(error.message) from None


def _padded_region(spec: TensorSpec, part: Part, slot: tuple[int, ...], shard: Shard, *, expert: bool) -> Region:
    """What of a tensor lies in the slot of a rank: ranks have slots alike, and what is beyond the tensor is padding."""
    rank, ranks = (shard.etp_rank, shard.etp_size) if expert else (shard.tp_rank, shard.tp_size)
    room = swapped(slot) if part.transpose else slot
    region: list[tuple[int, int]] = []
    for dim, length in enumerate(spec.shape):
        own = room[dim] if dim < len(room) else 0
        first, slots = (rank * own, ranks) if dim == part.split else (0, 1)
        if len(room) != len(spec.shape) or own * slots < length or (dim != part.split and own != length):
            raise _UnfilledError(f"has room for {list(room)}; {spec.name} is {list(spec.shape)} for {ranks} ranks")
        region.append((min(first, length), min(first + own, length)))
    return tuple(region)


def _equal(rule: Rule, part: Part, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a part where all parts are alike."""
    box = _slot(rule, shape) if len(rule.parts) > 1 else shape
    return swapped(box) if part.transpose else box


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of an array without gaps."""
    return tuple(accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1))[::-1] if shape else ()


def is_packed(box: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the box lies back to back; strides along dimensions of one element do not matter."""
    return all(n == 1 or a == b for n, a, b in zip(box, strides, row_major(box), strict=True)) or 0 in box


def swapped(values: tuple[int, ...]) -> tuple[int, ...]:
    """With the last two exchanged, as in a shape that is transposed."""
    return (*values[:-2], values[-1], values[-2])


def _check_unique(placements: Sequence[Placement]) -> None:
    owners: dict[str, str] = {}
    for placement in placements:
        label = placement.label
        if label in owners:
            raise WeightSyncError(
                f"checkpoint tensor {label} is claimed by both {owners[label]} and {placement.parameter}",
                remedy="Correct the bridge's mapping, so that each parameter has names of its own.",
            )
        owners[label] = placement.parameter
