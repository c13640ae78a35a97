"""Types and defaults of config keys, in the words of TOML."""

from __future__ import annotations

import json
import types
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "any value"}
_ARRAYS = (list, tuple, set, frozenset)


def type_words(annotation: Any) -> str:
    """A type as the user of a config file says it, such as ``integer`` or ``"a" or "b"``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(arguments[0])
    if origin is Literal:
        return " or ".join(toml_value(value) for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(type_words(member) for member in arguments if member is not type(None))
    if (origin or annotation) in _ARRAYS:
        members = dict.fromkeys(type_words(member) for member in arguments if member is not ...)
        return f"array of {' and '.join(members)}" if members else "array"
    if origin is dict or annotation is dict or table_model(annotation):
        return "table"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(toml_value(member.value) for member in annotation)
    return _WORDS.get(annotation) or str(getattr(annotation, "__name__", annotation))


def default_words(field: FieldInfo) -> str:
    """``required``, or the default as TOML; ``unset`` for ``None``, ``computed`` for a factory's."""
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return "computed"
    return "unset" if field.default is None else toml_value(field.default)


def toml_value(value: Any) -> str:
    """A value on one line as in a TOML file; what TOML cannot express, as Python does."""
    match value:
        case BaseModel():
            return toml_value(value.model_dump(exclude_unset=True, exclude_none=True))
        case Enum():
            return toml_value(value.value)
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML forbids it, JSON does not
        case dict():
            pairs = ", ".join(f"{key} = {toml_value(inner)}" for key, inner in value.items())
            return f"{{ {pairs} }}" if pairs else "{}"
        case list() | tuple() | set() | frozenset():
            return f"[{', '.join(toml_value(member) for member in value)}]"
        case _:
            return str(value)


def table_model(annotation: Any) -> type[BaseModel] | None:
    """The model of a table, an optional table or an array of tables; ``None`` for other types."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := table_model(part))), None)


def is_array(annotation: Any) -> bool:
    """Whether a table key holds an array of tables."""
    return (get_origin(annotation) or annotation) in _ARRAYS
