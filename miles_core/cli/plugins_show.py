"""``miles plugins show``: what one plugin is, where it comes from, and what it takes."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from miles_core.cli.plugins_named import kinds_with, not_found
from miles_core.kinds import KINDS
from miles_core.plugins.describe import function_of, members_of, summary_of
from miles_core.plugins.hub import Hub
from miles_core.plugins.loading.loader import import_target
from miles_core.plugins.reference import HOOKS
from miles_core.plugins.resolve import matching

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.plugins.reference import PluginRef


def show(name: str, /, *, kind: str | None = None, json: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Load one plugin and describe what it is, where it comes from and which options it takes.

    Parameters
    ----------
    name
        Its name, distribution/name, or (with --kind) module:attribute.
    kind
        Its kind, such as reward_models, where several kinds have that name.
    json
        Print one JSON object with the key plugins.
    """
    hub = Hub.discover()
    found = [_description(hub, ref) for ref in _named(hub, name, kind)]
    if json:
        sys.stdout.write(json_module.dumps({"plugins": found}, indent=2) + "\n")
    else:
        sys.stdout.write("\n".join("\n".join(_text(each)) + "\n" for each in found))


def _named(hub: Hub, name: str, kind: str | None) -> list[PluginRef]:
    if kind not in (None, HOOKS):
        return [hub.resolve(kind, name)]
    found = matching(hub.modules, name)
    if kind is None:
        found = [*(hub.resolve(each, name) for each in kinds_with(hub, name)), *found]
    if not found:
        raise not_found(hub, name)
    return found


def _description(hub: Hub, ref: PluginRef) -> dict[str, Any]:
    loaded = import_target(ref) if ref.kind == HOOKS else hub.load(ref)
    distribution = hub.distribution(ref.distribution) if ref.distribution else None
    facts = distribution.facts if distribution else None
    return {
        "kind": ref.kind,
        "name": ref.name,
        "summary": summary_of(loaded),
        "target": ref.target,
        "distribution": ref.distribution,
        "version": ref.version,
        "state": hub.state_of(ref) if ref.distribution else None,
        "location": str(distribution.editable or distribution.location) if distribution else None,
        "editable": distribution.editable is not None if distribution else None,
        "about": facts.summary if facts else "",
        "url": facts.url if facts else "",
        "hooks": [name for name in dir(loaded) if name.startswith("miles_")] if ref.kind == HOOKS else [],
        "contract": [asdict(member) for member in members_of(KINDS[ref.kind])] if ref.kind in KINDS else [],
        "function": function_of(KINDS[ref.kind]) if ref.kind in KINDS else None,
        "options": _options(hub, ref) if ref.kind in KINDS else [],
    }


def _options(hub: Hub, ref: PluginRef) -> list[dict[str, str]]:
    from miles_core.config.describe import default_words, type_words

    model = hub.config_model(ref)
    return [
        {
            "name": name,
            "type": type_words(field.annotation),
            "default": default_words(field),
            "description": field.description or "",
        }
        for name, field in (model.model_fields.items() if model else ())
    ]


def _text(found: dict[str, Any]) -> Iterator[str]:
    kind = KINDS.get(found["kind"])
    yield f"{found['name']}: {kind.singular if kind else 'plugin module'}"
    if found["summary"]:
        yield f"  {found['summary']}"
    yield f"  target        {found['target']}"
    if found["distribution"]:
        yield f"  distribution  {found['distribution']} {found['version']}, {found['state']}"
    if found["location"]:
        yield f"  location      {found['location']}{' (editable)' if found['editable'] else ''}"
    for label in ("about", "url"):
        if found[label]:
            yield f"  {label:<12}  {found[label]}"
    if found["hooks"]:
        yield f"  hooks         {', '.join(found['hooks'])}"
    if kind is None:
        return
    yield f"  named in      {kind.table}"
    yield "  options" if found["options"] else "  options       none"
    yield from _columns(found["options"], ("name", "type", "default", "description"))
    yield f"  {'an' if kind.singular[0] in 'aeiou' else 'a'} {kind.singular} has"
    for member in found["contract"]:
        yield f"    {member['definition']}{'' if member['required'] else '  (may be left out)'}"
    if found["function"]:
        yield f"    or is a plain function: {found['function']}"


def _columns(rows: list[dict[str, str]], keys: tuple[str, ...]) -> Iterator[str]:
    widths = [max((len(row[key]) for row in rows), default=0) for key in keys[:-1]]
    for row in rows:
        yield "    " + "  ".join(map(str.ljust, (row[key] for key in keys), [*widths, 0])).rstrip()
