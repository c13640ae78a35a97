"""``miles plugins``: which plugins there are, and what one of them takes."""

from __future__ import annotations

import json as json_module
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from miles_core.config.suggest import did_you_mean
from miles_core.errors import PluginNotFound
from miles_core.kinds import KINDS
from miles_core.plugins.hub import Hub
from miles_core.plugins.resolve import kind_named, matching

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import BaseModel

    from miles_core.plugins.reference import PluginRef

app = App(name="plugins", help="List and describe the installed plugins.")

_COLUMNS = ("kind", "name", "distribution", "version", "state", "target")


@app.command(name="list")
def list_plugins(*, kind: str | None = None, json: Annotated[bool, Parameter(negative=())] = False) -> None:
    """List the installed plugins from their metadata, importing none of them.

    A config file names a plugin by NAME, or by DISTRIBUTION/NAME where several offer that name; `miles plugins show
    NAME` tells its options. Computed ones are modules that add plugins when a run starts.

    Parameters
    ----------
    kind
        Only plugins of this kind, such as reward_models.
    json
        Print one JSON object with the keys plugins and problems.
    """
    if kind is not None:
        kind_named(kind)
    hub = Hub.discover()
    rows = [
        *_rows(hub.refs(), "discovered"),
        *_rows(hub.modules, "computed"),  # it adds plugins only when it runs, so they cannot be listed
    ]
    rows = [row for row in rows if kind in (None, row["kind"])]
    if json:
        sys.stdout.write(json_module.dumps({"plugins": rows, "problems": hub.problems}, indent=2) + "\n")
        return
    sys.stdout.write(_table(rows) if rows else "no plugins\n")
    sys.stderr.write("".join(f"warning: {problem}\n" for problem in hub.problems))


@app.command
def show(name: str, /, *, kind: str | None = None) -> None:
    """Load one plugin and describe what it is, where it comes from and which options it takes.

    Parameters
    ----------
    name
        Its name, distribution/name, or (with --kind) module:attribute.
    kind
        Its kind, such as reward_models, where several kinds have that name.
    """
    hub = Hub.discover()
    kinds = [kind] if kind is not None else _kinds_with(hub, name)
    sys.stdout.write("\n".join(_description(hub, hub.resolve(each, name)) for each in kinds))


def _rows(refs: Iterable[PluginRef], state: str) -> list[dict[str, str | None]]:
    return [{column: getattr(ref, column, state) for column in _COLUMNS} for ref in refs]


def _table(rows: list[dict[str, str | None]]) -> str:
    lines = [[column.upper() for column in _COLUMNS], *([row[column] or "" for column in _COLUMNS] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    return "".join("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)


def _kinds_with(hub: Hub, name: str) -> list[str]:
    refs = hub.refs(computed=True)
    if kinds := sorted({ref.kind for ref in matching(refs, name)}):
        return kinds
    known = sorted({ref.name for ref in refs})
    raise PluginNotFound(
        f"no plugin is called {name!r}; installed: {', '.join(known) or 'none'}",
        remedy="Add --kind to describe a module:attribute."
        if ":" in name
        else did_you_mean(name, known) or "Run `miles plugins list`.",
    )


def _description(hub: Hub, ref: PluginRef) -> str:
    factory = hub.load(ref)
    summary = (factory.__doc__ or "").strip().partition("\n")[0]
    lines = [f"{ref.name}: {KINDS[ref.kind].singular}", *([f"  {summary}"] if summary else [])]
    lines += [f"  target        {ref.target}"]
    if ref.distribution:
        lines += [f"  distribution  {ref.distribution} {ref.version}"]
    model = hub.config_model(ref)
    lines += ["  options", *_options(model)] if model and model.model_fields else ["  options       none"]
    return "\n".join(lines) + "\n"


def _options(model: type[BaseModel]) -> list[str]:
    from miles_core.config.describe import default_words, type_words

    rows = [
        (name, type_words(field.annotation), default_words(field), field.description or "")
        for name, field in model.model_fields.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return ["    " + "  ".join(map(str.ljust, row, [*widths, 0])).rstrip() for row in rows]
