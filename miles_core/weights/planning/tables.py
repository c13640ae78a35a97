"""Parameters of one rank of an engine that does not run yet, by a bridge's mapping."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from miles_core.errors import ConfigError, WeightSyncError
from miles_core.lib.layout.build import swapped
from miles_core.lib.layout.sharding import config_count, local_experts
from miles_core.types import Parameter, ParameterTable
from miles_core.weights.planning import sglang
from miles_core.weights.planning.divide import divided

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.types import Part, Rule, Shard, TensorSpec
    from miles_core.weights.planning.model import PlannedModel
    from miles_core.weights.planning.origins import Origin


class Tables:
    """The tables of an engine's ranks; ``dtype`` is what it holds instead of the trainer's type, if it differs.

    Raises:
        WeightSyncError: if the bridge has no mapping for ``naming``.
    """

    def __init__(self, model: PlannedModel, naming: str = sglang.NAMING, dtype: str | None = None) -> None:
        self._model = model
        self._naming = naming
        self._dtype = dtype
        self._mapping = model.mapping(naming)
        self._main = next((placement.tensor.dtype for placement in model.layout.placements), "")
        self._forms = _forms(model.divided) if naming == sglang.NAMING else ()

    def of(self, shard: Shard) -> ParameterTable:
        """The table of one rank.

        Raises:
            WeightSyncError: if the model does not divide so.
            ConfigError: if no one knows how engines of this naming divide.
        """
        if self._naming == sglang.NAMING:
            rows = list(self._rows(shard))
        elif shard.tp_size == shard.pp_size == shard.ep_size == 1:
            rows = list(self._model.table.parameters)
        else:
            raise ConfigError(
                f"engines of naming {self._naming!r} are not divided; got {shard.tp_size} x {shard.pp_size} ranks",
                remedy=f"Leave out tp, pp and ep, or plan for {sglang.NAMING}.",
            )
        return ParameterTable(tuple(map(self._typed, rows)), shard, self._naming)

    def _rows(self, shard: Shard) -> Iterator[Parameter]:
        heads = self._mapping.tied or {}
        layers = sglang.layers_of(config_count(self._model.hf_config, "num_hidden_layers"), shard)
        for form in self._forms:
            if form.layer is None:
                everywhere = form.parameter in heads and self._model.architecture in sglang.HEAD_EVERYWHERE
                here = everywhere or shard.pp_rank == shard.pp_size - 1
            else:
                here = form.layer in layers or (form.layer < 0 and shard.pp_rank == 0)
            if here:
                yield self._row(form, shard)
        if self._model.tied and shard.pp_rank == shard.pp_size - 1:
            yield from self._tied(shard)

    def _tied(self, shard: Shard) -> Iterator[Parameter]:
        """Output projections; one that is on another stage than what it is tied to is a copy."""
        for name, owner in (self._mapping.tied or {}).items():
            for form in self._forms:
                if form.parameter == owner:
                    row = replace(self._row(form, shard), name=name)
                    yield replace(row, shares=owner) if shard.pp_size == 1 else row

    def _row(self, form: _Form, shard: Shard) -> Parameter:
        rule, specs = form.rule, form.specs
        if rule is None:
            return Parameter(form.parameter, specs[0].dtype, specs[0].shape)
        if form.rounds_up:
            rows = sglang.padded_rows(specs[0].shape[0], shard)
            return Parameter(form.parameter, specs[0].dtype, (rows, *specs[0].shape[1:]))
        boxes = [self._box(part, spec, shard) for part, spec in zip(rule.parts, specs, strict=True)]
        shape = list(boxes[0])
        if shape:
            shape[rule.axis] = sum(box[rule.axis] for box in boxes)
        if rule.stacked:
            shape = [len(local_experts(shard, form.experts)), *shape]
        return Parameter(form.parameter, specs[0].dtype, tuple(shape))

    def _box(self, part: Part, spec: TensorSpec, shard: Shard) -> tuple[int, ...]:
        """The shape in which a rank holds the part."""
        shape = tuple(stop - start for start, stop in divided(part, spec, shard, self._model.hf_config))
        return swapped(shape) if part.transpose else shape

    def _typed(self, row: Parameter) -> Parameter:
        return replace(row, dtype=self._dtype) if self._dtype and row.dtype == self._main else row


@dataclass(frozen=True, slots=True)
class _Form:
    """A parameter before it is divided: a tensor for each part of its rule, those of the first expert if stacked."""

    parameter: str
    layer: int | None
    rule: Rule | None
    specs: tuple[TensorSpec, ...]
    experts: int
    rounds_up: bool = False


def _forms(found: tuple[Origin, ...]) -> tuple[_Form, ...]:
    groups: dict[str, list[Origin]] = {}
    for origin in found:
        groups.setdefault(origin.parameter, []).append(origin)
    return tuple(_form(parameter, group) for parameter, group in groups.items())


def _form(parameter: str, group: list[Origin]) -> _Form:
    rule = group[0].rule
    experts = len({origin.expert for origin in group})
    if rule is None:
        return _Form(parameter, group[0].layer, None, (group[0].spec,), experts)
    first = {origin.part: origin.spec for origin in reversed(group)}
    if lacking := [part.checkpoint for part in rule.parts if part not in first]:
        raise WeightSyncError(
            f"parameter {parameter} is made of tensors that the model does not have: {', '.join(lacking)}",
            remedy="Correct the rule in the bridge's engine_mappings.",
        )
    specs = tuple(first[part] for part in rule.parts)
    return _Form(parameter, group[0].layer, rule, specs, experts, group[0].rounds_up)
