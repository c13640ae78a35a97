"""The page of ``miles_core.api``: every name, with its signature and what it says."""

from __future__ import annotations

from kinds_page import types_of
from prose import markdown, summary, table
from types_section import described

from miles_core import api
from miles_core.errors import MilesError
from miles_core.kinds import KINDS

KIND_OF = {type_: plural for plural, kind in KINDS.items() for type_ in (kind.protocol, *types_of(kind))}


def page() -> str:
    """The whole page."""
    classes = public_classes()
    of_kinds = [type_ for type_ in classes if type_ in KIND_OF]
    errors = [type_ for type_ in classes if issubclass(type_, MilesError)]
    data = [type_ for type_ in classes if type_ not in of_kinds and type_ not in errors]
    parts = [
        "# API",
        markdown(api.__doc__),
        "`KINDS` maps the plural of each kind to its `Kind`. These names are shown with their kind:",
        table(("name", "kind"), [(f"`{type_.__name__}`", _kind_link(type_)) for type_ in of_kinds]),
        "## Errors",
        table(("name", "what"), [(f"`{type_.__name__}`", summary(type_.__doc__)) for type_ in errors]),
        *(f"## {type_.__name__}\n\n{described(type_)}" for type_ in data),
    ]
    return "\n\n".join(parts) + "\n"


def public_classes() -> list[type]:
    """The classes of ``miles_core.api``, by name."""
    found = (getattr(api, name) for name in sorted(api.__all__))
    return [thing for thing in found if isinstance(thing, type)]


def _kind_link(type_: type) -> str:
    plural = KIND_OF[type_]
    return f"[{plural}](kinds.md#{plural})"
