"""``--set a.b=c``: one value of the config file, replaced from the command line."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from miles_core.config.schema import Config
from miles_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


def apply_overrides(document: dict[str, Any], overrides: Sequence[str]) -> None:
    """Write every ``path=value`` into the parsed file, in order; the last of several wins.

    A path goes into tables by key and into arrays by index (``rewards.0.weight``); the index after the last appends.
    A value is TOML where it can be parsed as such, otherwise text.

    Raises:
        ConfigError: if one is no ``path=value``, or its path runs into a plain value or beyond an array.
    """
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = [key.strip() for key in path.split(".")]
        if not equals or not all(keys):
            raise ConfigError(f"--set {override}: expected a dotted key, '=' and a value", remedy="Write --set a.b=c.")
        _seed(document, keys)
        _assign(document, keys, toml_value(text), override)


def toml_value(text: str) -> Any:
    """The value that a text is in TOML, or the text itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # A line break in the text could smuggle in further keys.
    return parsed["value"] if len(parsed) == 1 else text


def _seed(document: dict[str, Any], keys: list[str]) -> None:
    """Start from the schema's default where a path enters a table that the file leaves out."""
    field = Config.model_fields.get(keys[0])
    if len(keys) == 1 or keys[0] in document or field is None:
        return
    match field.default:
        case BaseModel() as table:
            document[keys[0]] = table.model_dump(exclude_unset=True)
        case tuple() as tables:
            document[keys[0]] = [table.model_dump(exclude_unset=True) for table in tables]


def _assign(document: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    container: dict[str, Any] | list[Any] = document
    for depth, key in enumerate(keys[:-1]):
        fresh: dict[str, Any] | list[Any] = [] if _is_index(keys[depth + 1]) else {}
        container = _enter(container, key, fresh, ".".join(keys[: depth + 1]), override)
    if isinstance(container, dict):
        container[keys[-1]] = value
    else:
        index = _index(container, keys[-1], override)
        container[index : index + 1] = [value]


def _enter(container: dict[str, Any] | list[Any], key: str, fresh: Any, path: str, override: str) -> Any:
    if isinstance(container, dict):
        inner = container.setdefault(key, fresh)
    else:
        index = _index(container, key, override)
        if index == len(container):
            container.append(fresh)
        inner = container[index]
    if not isinstance(inner, dict | list):
        raise ConfigError(
            f"--set {override}: {path} is {inner!r}, which has no keys", remedy=f"End the path at {path}."
        )
    return inner


def _index(array: list[Any], key: str, override: str) -> int:
    if not _is_index(key) or int(key) > len(array):
        raise ConfigError(
            f"--set {override}: expected an index from 0 to {len(array)} (which appends); got {key!r}",
            remedy="Name an element of the array by its index, such as rewards.0.weight.",
        )
    return int(key)


def _is_index(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) < 6
