"""For each checkpoint tensor, the rule of a mapping that says which parameter it is part of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from miles_core.lib.layout.names import fill_name, match_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from miles_core.types import NameMapping, Part, Rule, TensorSpec

_LAYER = re.compile(r"\.layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint tensor, and the ``parameter`` that it is in: whole under its own name where no rule names it.

    ``layer`` is the number of its layer; -1 before the first one, such as embeddings, and ``None`` after the last.
    """

    spec: TensorSpec
    parameter: str
    layer: int | None
    rule: Rule | None = None
    part: Part | None = None
    expert: int | None = None

    @property
    def rounds_up(self) -> bool:
        """Whether its rows are those of the vocabulary, which are rounded up before ranks divide them."""
        return self.rule is not None and self.rule.padded and (self.layer is None or self.layer < 0)


def origins(mapping: NameMapping, specs: Iterable[TensorSpec]) -> tuple[Origin, ...]:
    """In the order of ``specs``, which is that of the modules."""
    found: list[Origin] = []
    began = False
    for spec in specs:
        layer = _LAYER.search(spec.name)
        began |= layer is not None
        number = int(layer[1]) if layer else None if began else -1
        found.append(_origin(mapping, spec, number))
    return tuple(found)


def _origin(mapping: NameMapping, spec: TensorSpec, layer: int | None) -> Origin:
    for rule, part in _parts(mapping):
        groups = match_name(part.checkpoint, spec.name)
        if groups is None:
            continue
        expert = groups.get("expert")
        return Origin(
            spec, fill_name(rule.parameter, groups), layer, rule, part, None if expert is None else int(expert)
        )
    return Origin(spec, spec.name, layer)


def _parts(mapping: NameMapping) -> Iterator[tuple[Rule, Part]]:
    return ((rule, part) for rule in mapping.rules for part in rule.parts)
