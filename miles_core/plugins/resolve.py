"""From what the user wrote to one plugin: never first-wins, never renaming."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.config.suggest import did_you_mean
from miles_core.errors import PluginError, PluginNotFound
from miles_core.kinds import KINDS
from miles_core.plugins.reference import PluginRef, normalise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.kinds import Kind


def kind_named(kind: str) -> Kind:
    """The kind whose plural is ``kind``.

    Raises:
        PluginError: if there is none.
    """
    if kind not in KINDS:
        raise PluginError(
            f"there is no plugin kind {kind!r}; kinds: {', '.join(KINDS)}", remedy=did_you_mean(kind, KINDS)
        )
    return KINDS[kind]


def matching(refs: Sequence[PluginRef], text: str) -> list[PluginRef]:
    """Those that ``text`` names, as ``name`` or as ``distribution/name``."""
    named = [ref for ref in refs if ref.name == text]
    distribution, slash, name = text.partition("/")
    if named or not slash:
        return named
    return [ref for ref in refs if ref.name == name and ref.distribution == normalise(distribution)]


def resolve(
    kind: str, text: str, refs: Sequence[PluginRef], blocked: Sequence[PluginRef], failures: Sequence[str]
) -> PluginRef:
    """The one plugin of ``kind`` that ``text`` names, or a reference to the target that it writes out.

    Raises:
        PluginNotFound: if nothing, or more than one thing, answers; says what exists and why others do not count.
    """
    singular = kind_named(kind).singular
    matches = matching([ref for ref in refs if ref.kind == kind], text)
    if len(matches) == 1:
        return matches[0]
    if matches:
        qualified = ", ".join(sorted(str(ref) for ref in matches))
        raise PluginNotFound(
            f"{len(matches)} plugins answer to {text!r}: {qualified}",
            remedy=f"Write one of: {', '.join(sorted({ref.qualified_name for ref in matches}))}.",
        )
    if barred := matching([ref for ref in blocked if ref.kind == kind], text):
        raise PluginNotFound(
            f"the {singular} {text!r} is installed but blocked: {barred[0]}",
            remedy=f"Take {barred[0].distribution!r} out of [plugins] block.",
        )
    if target := _written_target(text):
        return PluginRef(kind, text, target)
    raise _not_found(kind, text, refs, failures)


def _written_target(text: str) -> str | None:
    if ":" in text:
        return text
    module, dot, attribute = text.rpartition(".")
    if dot and all(part.isidentifier() for part in text.split(".")):
        return f"{module}:{attribute}"
    return None


def _not_found(kind: str, text: str, refs: Sequence[PluginRef], failures: Sequence[str]) -> PluginNotFound:
    names = sorted({ref.name for ref in refs if ref.kind == kind})
    elsewhere = sorted({KINDS[ref.kind].singular for ref in matching(refs, text)})
    notes = [f"; {text!r} is a {', a '.join(elsewhere)}"] if elsewhere else []
    notes += [f"; not usable: {failure}" for failure in failures]
    return PluginNotFound(
        f"no {KINDS[kind].singular} is called {text!r}; installed: {', '.join(names) or 'none'}{''.join(notes)}",
        remedy=did_you_mean(text, [*names, *(ref.qualified_name for ref in refs if ref.kind == kind)])
        or "Install the distribution that offers it, or write module:attribute.",
    )
