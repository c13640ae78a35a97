"""Filters: they decide what is trained on, with a counted reason."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

from miles_core.kinds.base import Kind, PluginContext
from miles_core.lib.error_text import value_text
from miles_core.lib.signatures import is_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
    :class:`BufferedGroup`, when the trainer takes it. What it gets is read-only.
    """

    stage: Stage

    def keep(self, item: Any) -> Any:
        """A :class:`Verdict` on the item; ``def`` runs in a thread, ``async def`` is awaited."""


def adapt(function: Callable[..., Any]) -> Callable[[Any, PluginContext], Filter]:
    """A factory for a plain ``fn(group) -> bool | Verdict``, sync or async; its name is the reason of its drops."""
    reason = _name(function)

    class FunctionFilter:
        stage: Stage = "group"

        def __init__(self, config: Any, context: PluginContext) -> None:
            del config, context

        def keep(self, item: Any) -> Any:
            verdict = function(item)
            return _awaited(verdict, reason) if isawaitable(verdict) else _verdict(verdict, reason)

    class AsyncFunctionFilter(FunctionFilter):
        async def keep(self, item: Any) -> Verdict:
            return _verdict(await function(item), reason)

    return AsyncFunctionFilter if is_async(function) else FunctionFilter


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__).strip("_<>") or "filter"


async def _awaited(verdict: Awaitable[Any], reason: str) -> Verdict:
    return _verdict(await verdict, reason)


def _verdict(verdict: Any, reason: str) -> Verdict:
    if isinstance(verdict, Verdict):
        return verdict
    if not isinstance(verdict, bool):
        raise TypeError(f"filter {reason} must return a bool or a Verdict; got {value_text(verdict)}")
    return Verdict(verdict, "" if verdict else reason)


KIND = Kind(
    plural="filters",
    singular="filter",
    summary="decides which samples and groups are trained on",
    table="[[filters]]",
    protocol=Filter,
    members=("stage", "keep"),
    choices={"stage": get_args(Stage)},
    adapt=adapt,
    function=("item",),
)
