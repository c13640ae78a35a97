"""Filters: they decide what is trained on, with a counted reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

from miles_core.kinds.base import Kind, PluginContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.types import Group

Stage = Literal["sample", "group", "buffer"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to keep an item; ``reason`` is a short snake_case word that metrics count drops by."""

    keep: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BufferedGroup:
    """A group that is about to be trained, and the policy versions that its oldest trained token lags by then."""

    group: Group
    staleness: int


@runtime_checkable
class Filter(Protocol):
    """Judges one item, by ``stage``.

    ``"sample"``: a ``Trajectory``; ``"group"``: a ``Group``, both after scoring; ``"buffer"``: a
    :class:`BufferedGroup`, when the trainer takes it.
    """

    stage: Stage

    def keep(self, item: Any) -> Verdict:
        """Keep or drop the item."""


def adapt(function: Callable[..., Any]) -> Callable[[Any, PluginContext], Filter]:
    """A factory for a plain ``fn(group) -> bool | Verdict``; its name is the reason of its drops."""
    reason = getattr(function, "__name__", "filter").strip("_<>") or "filter"

    class FunctionFilter:
        stage: Stage = "group"

        def __init__(self, config: Any, context: PluginContext) -> None:
            del config, context

        def keep(self, item: Any) -> Verdict:
            verdict = function(item)
            if isinstance(verdict, Verdict):
                return verdict
            if not isinstance(verdict, bool):
                raise TypeError(f"filter {reason} must return a bool or a Verdict; got {verdict!r}")
            return Verdict(verdict, "" if verdict else reason)

    return FunctionFilter


KIND = Kind(
    plural="filters",
    singular="filter",
    summary="decides which samples and groups are trained on",
    table="[[filters]]",
    protocol=Filter,
    members=("stage", "keep"),
    awaited={"keep": False},
    choices={"stage": get_args(Stage)},
    adapt=adapt,
)
