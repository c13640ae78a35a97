"""From what the user wrote to one plugin: never first-wins, never renaming."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.config.suggest import did_you_mean, listed
from miles_core.errors import PluginError, PluginNotFound
from miles_core.kinds import KINDS
from miles_core.plugins.installed.conflicts import choices
from miles_core.plugins.installed.preferences import preferred
from miles_core.plugins.reference import HOOKS, PluginRef, normalise, written_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.kinds import Kind
    from miles_core.plugins.installed.standing import Listed


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
    kind: str,
    text: str,
    refs: Sequence[PluginRef],
    left_out: Sequence[Listed] = (),
    prefer: Sequence[str] = (),
    failures: Sequence[str] = (),
) -> PluginRef:
    """The one plugin of ``kind`` that ``text`` names, or a reference to the target that it writes out.

    ``prefer`` holds the ``distribution/name`` that win where several plugins have a name.

    Raises:
        PluginNotFound: if nothing, or more than one thing, answers; says what exists and why others do not count.
    """
    singular = kind_named(kind).singular
    matches = matching([ref for ref in refs if ref.kind == kind], text)
    barred = [row for row in left_out if row.ref.kind == kind and row.ref in matching([row.ref], text)]
    if wanted := preferred([*matches, *(row.ref for row in barred)], prefer):
        matches = [ref for ref in wanted if ref in matches]
        barred = [row for row in barred if row.ref in wanted]
    if len(matches) == 1:
        return matches[0]
    if matches:
        found = ", ".join(sorted(str(ref) for ref in matches))
        raise PluginNotFound(
            f"{len(matches)} plugins answer to {text!r}: {found}", remedy=f"Write one of: {choices(matches)}."
        )
    if barred:
        row = barred[0]
        raise PluginNotFound(
            f"the {singular} {text!r} is installed but {row.state}, because {row.reason}: {row.ref}", remedy=row.remedy
        )
    if target := written_target(text):
        return PluginRef(kind, text, target)
    unseen = {row.ref.qualified_name: row.state for row in left_out if row.ref.kind == HOOKS}
    unheard = [f"{name} may add it, but is {state}" for name, state in unseen.items()]
    raise _not_found(kind, text, refs, [*failures, *unheard])


def _not_found(kind: str, text: str, refs: Sequence[PluginRef], failures: Sequence[str]) -> PluginNotFound:
    names = sorted({ref.name for ref in refs if ref.kind == kind})
    elsewhere = sorted({KINDS[ref.kind].singular for ref in matching(refs, text)})
    notes = [f"; {text!r} is a {', a '.join(elsewhere)}"] if elsewhere else []
    notes += [f"; not usable: {failure}" for failure in failures]
    return PluginNotFound(
        f"no {KINDS[kind].singular} is called {text!r}; installed: {listed(names)}{''.join(notes)}",
        remedy=did_you_mean(text, [*names, *(ref.qualified_name for ref in refs if ref.kind == kind)])
        or "Install the distribution that offers it, or write module:attribute.",
    )
