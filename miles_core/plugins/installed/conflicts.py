"""Names that more than one plugin has."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from miles_core.plugins.installed.preferences import preferred
from miles_core.plugins.installed.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from miles_core.plugins.reference import PluginRef


def choices(refs: Iterable[PluginRef]) -> str:
    """What to write to name one of ``refs``: targets where even distribution and name are the same."""
    listed = list(refs)
    qualified = {ref.qualified_name for ref in listed}
    return ", ".join(sorted(qualified if len(qualified) == len(listed) else {ref.target for ref in listed}))


def conflicts(refs: Iterable[PluginRef], prefer: Sequence[str]) -> list[Problem]:
    """One problem for each kind and name that several plugins have and no preference decides."""
    same: defaultdict[tuple[str, str], list[PluginRef]] = defaultdict(list)
    for ref in refs:
        same[ref.kind, ref.name].append(ref)
    problems = []
    for (kind, name), found in sorted(same.items()):
        if len(found) == 1 or len(preferred(found, prefer)) == 1:
            continue
        owners = ", ".join(sorted({f"{ref.distribution} {ref.version}" for ref in found}))
        remedy = f"Write one of: {choices(found)}."
        if len({ref.distribution for ref in found}) == len(found):
            remedy = f"{remedy[:-1]}; or name one in [plugins] prefer."
        problems.append(Problem(f"{kind} {name!r} is offered more than once, by {owners}", remedy))
    return problems
