"""A kind's contract in words, read from its Protocol."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from miles_core.kinds import Kind


@dataclass(frozen=True, slots=True)
class Member:
    """One attribute or method of a kind's objects.

    ``definition`` is how a plugin writes it, such as ``async def score(self, items) -> list[Reward]``; ``required``
    ones must be there.
    """

    name: str
    definition: str
    summary: str
    required: bool


def members_of(kind: Kind) -> list[Member]:
    """The members of a kind's objects: attributes, then methods, in the order of its Protocol, then other forms'."""
    names = [*inspect.get_annotations(kind.protocol), *(name for name in vars(kind.protocol) if _is_method(kind, name))]
    others = [vars(kind.other_protocol)[name] for name in kind.other_members] if kind.other_protocol else []
    return [*(_member(kind, name) for name in names), *map(_other, others)]


def function_of(kind: Kind) -> str | None:
    """How a plain function is written, where one is enough: ``def or async def fn(trajectory)``."""
    if kind.adapt is None:
        return None
    prefix = "def" if False in kind.awaited.values() else "def or async def"
    return f"{prefix} fn({', '.join(kind.function)})"


def summary_of(thing: Any) -> str:
    """The first paragraph of a docstring, on one line; ``""`` without one."""
    text = inspect.cleandoc(thing.__doc__ or "")
    return " ".join(text.partition("\n\n")[0].split())


def _is_method(kind: Kind, name: str) -> bool:
    # A Protocol gets an `__init__` of its own.
    return inspect.isfunction(vars(kind.protocol)[name]) and (not name.startswith("_") or name in kind.members)


def _member(kind: Kind, name: str) -> Member:
    function = vars(kind.protocol).get(name)
    if not inspect.isfunction(function):
        return Member(name, _attribute(kind, name), "", name in kind.members)
    prefix = {True: "async def", False: "def", None: "def or async def"}[_awaited(kind, name, function)]
    definition = f"{prefix} {name}{_signature(function)}"
    return Member(name, definition, summary_of(function), name in kind.members)


def _other(function: Any) -> Member:
    """A method that stands in place of the required ones."""
    return Member(
        function.__name__, f"def or async def {function.__name__}{_signature(function)}", summary_of(function), False
    )


def _attribute(kind: Kind, name: str) -> str:
    values = [repr(choice) for choice in kind.choices.get(name, ())]
    annotation = str(inspect.get_annotations(kind.protocol)[name])
    if not values:
        return f"{name}: {annotation}"
    if annotation.startswith("tuple"):
        return f"{name}: a tuple of some of {', '.join(values)}"
    return f"{name} = {' or '.join(values)}"


def _awaited(kind: Kind, name: str, function: Any) -> bool | None:
    """Whether a method is awaited; ``None`` where both work: an object of any type may be an awaitable."""
    if name in kind.awaited:
        return kind.awaited[name]
    return None if inspect.get_annotations(function).get("return") == "Any" else inspect.iscoroutinefunction(function)


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [
        each.replace(annotation=each.empty) if each.annotation == "Any" else each
        for each in signature.parameters.values()
    ]
    # The annotations are text, since the module postpones them; printed as text they would be in quotes.
    words = str(signature.replace(parameters=parameters, return_annotation=signature.empty)).replace("'", "")
    returns = signature.return_annotation
    return words if returns in (signature.empty, "Any") else f"{words} -> {returns}"
