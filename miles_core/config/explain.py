"""pydantic's validation errors, in the words of a config file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.config.describe import table_model, type_words
from miles_core.config.suggest import unknown_key

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

_EXPECTED_TABLE = ("model_type", "model_attributes_type", "dict_type")
_EXPECTED_ARRAY = ("tuple_type", "list_type", "set_type", "frozen_set_type")


def explain(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line per error: the full dotted key, what was expected and what came; the nearest key for unknown ones."""
    return [_line(detail, model) for detail in error.errors(include_url=False)]


def _line(detail: ErrorDetails, model: type[BaseModel]) -> str:
    *parents, key = detail["loc"] or ("",)
    path = ".".join(str(part) for part in detail["loc"])
    table = _table_at(model, parents)
    if detail["type"] == "extra_forbidden":
        return unknown_key(path, str(key), table.model_fields if table else ())
    if detail["type"] == "missing":
        field = table.model_fields.get(str(key)) if table else None
        purpose = f": {field.description}" if field and field.description else ""
        return f"{path}: missing; expected {type_words(field.annotation) if field else 'a value'}{purpose}"
    return f"{path}: {_expected(detail, str(key))}".removeprefix(": ")


def _expected(detail: ErrorDetails, key: str) -> str:
    came = detail["input"]
    if detail["type"] in _EXPECTED_TABLE:
        return f"expected a table; got {_short(came)}"
    if detail["type"] in _EXPECTED_ARRAY:
        hint = f"; write [[{key}]] for an array of tables" if isinstance(came, dict) else ""
        return f"expected an array; got {_short(came)}{hint}"
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "expected", 1)
    message = message.replace("a valid string", "text", 1).replace("a valid ", "", 1)
    # a rule about a whole table says itself what does not fit
    return message if isinstance(came, dict) else f"{message}; got {_short(came)}"


def _table_at(model: type[BaseModel], parents: list[int | str]) -> type[BaseModel] | None:
    table: type[BaseModel] | None = model
    for part in parents:
        if table is None:
            return None
        if isinstance(part, str):
            field = table.model_fields.get(part)
            table = table_model(field.annotation) if field else None
    return table


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
