"""Every key of the config file, described from the schema itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miles_core.config.describe import default_words, is_array, table_model, type_words
from miles_core.config.schema import Config
from miles_core.config.tables import FunctionTable, PluginTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo


def reference() -> str:
    """Tables in the schema's order; one line per key with its dotted name, type, default and description."""
    return "\n\n".join("\n".join(section) for section in _sections(Config, ""))


def _sections(model: type[BaseModel], prefix: str) -> Iterator[list[str]]:
    for name, field in model.model_fields.items():
        table = table_model(field.annotation)
        if table is None:
            continue
        path = f"{prefix}{name}"
        yield [_heading(path, field, table), *_keys(table, path)]
        yield from _sections(table, f"{path}.")


def _heading(path: str, field: FieldInfo, table: type[BaseModel]) -> str:
    title = f"[[{path}]]" if is_array(field.annotation) else f"[{path}]"
    summary = field.description or _summary(table)
    default = default_words(field)
    note = {"required": "(required)", "unset": "(optional)", "{}": "", "[]": ""}.get(default, f"(default {default})")
    return "  ".join(part for part in (title, summary, note) if part)


def _summary(table: type[BaseModel]) -> str:
    if table is PluginTable:
        return ""
    return (table.__doc__ or "").split("\n")[0].partition("``: ")[2].replace("``", "").rstrip(".")


def _keys(table: type[BaseModel], path: str) -> list[str]:
    rows = [
        (f"{path}.{name}", type_words(field.annotation), default_words(field), field.description or "")
        for name, field in table.model_fields.items()
        if table_model(field.annotation) is None
    ]
    if issubclass(table, PluginTable):
        function = issubclass(table, FunctionTable)
        own = "the function's own keyword arguments" if function else "the plugin's own keys: `miles plugins show NAME`"
        rows.append((f"{path}.*", "", "", own))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return ["  " + "  ".join(map(str.ljust, row, [*widths, 0])).rstrip() for row in rows]
