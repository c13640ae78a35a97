"""Mapping as data: how parameters of a model, in a trainer or an engine, are made of checkpoint tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Part:
    """A checkpoint tensor, or each expert's, inside a parameter.

    ``checkpoint`` is its name with the placeholders of the rule, and ``{expert}`` where the rule is stacked. ``split``
    is the dimension of the checkpoint tensor that tensor-parallel ranks divide (``None``: each has all). ``units`` is
    the key in ``config.json`` that counts what is never divided, such as ``num_key_value_heads``: ranks beyond that
    number share a unit. ``transpose`` says that the parameter holds the last two dimensions swapped.
    """

    checkpoint: str
    split: int | None = None
    units: str | None = None
    transpose: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """How checkpoint tensors fill the parameters of one form of name.

    ``parameter`` is a name with placeholders: ``{layer}`` and ``{expert}`` stand for a number, any other for text
    without a dot. Its ``parts`` are concatenated along ``axis``. ``stacked``: the first dimension is one entry per
    expert, and parts, ``axis`` and ``transpose`` are about entries. ``padded``: sizes along the dimension that ranks
    divide may be rounded up; parts then have rooms alike, and what is in one beyond the tensor's end is padding.
    """

    parameter: str
    parts: tuple[Part, ...]
    axis: int = 0
    stacked: bool = False
    padded: bool = False


@dataclass(frozen=True, slots=True)
class NameMapping:
    """How parameters relate to checkpoint tensors, as data; what no rule names keeps its name, whole on each rank.

    The first rule that fits a parameter holds. ``tied`` maps a parameter that shares storage to the one whose
    checkpoint tensor fills it, and holds where the model's config ties them.
    """

    rules: tuple[Rule, ...] = ()
    tied: Mapping[str, str] | None = None
