"""A config file read, overridden and validated; and written back."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w
from pydantic import ValidationError

from miles_core.config.explain import explain
from miles_core.config.overrides import apply_overrides
from miles_core.config.schema import Config
from miles_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A config and where its file lies; relative paths in it count from ``base_dir``."""

    config: Config
    path: Path
    base_dir: Path

    def resolve(self, path: str | Path) -> Path:
        """An absolute path from one written in the config; ``~`` is the home directory."""
        return (self.base_dir / Path(path).expanduser()).resolve()


def load_config(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a TOML file, apply ``--set`` values such as ``rewards.0.weight=2`` and validate it.

    Options of plugins are not validated here: the hub does it, because only the plugin knows them.

    Raises:
        ConfigError: if the file cannot be read, is no TOML, or does not fit the schema; all errors together.
    """
    document = _read(path)
    apply_overrides(document, overrides)
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        lines = explain(error, Config)
        count = "1 error" if len(lines) == 1 else f"{len(lines)} errors"
        source = f"{path} with --set {' '.join(overrides)}" if overrides else str(path)
        raise ConfigError(
            f"{source}: {count}\n  " + "\n  ".join(lines),
            remedy="Correct these keys; `miles config reference` describes them all.",
        ) from None
    absolute = path.resolve()
    return LoadedConfig(config, absolute, absolute.parent / (config.run.base_dir or ""))


def dump_config(config: Config) -> str:
    """The whole config as TOML, defaults and plugin options included; keys without a value are left out.

    Tables come in the schema's order, arrays of tables as ``[[...]]``, as a person writes them.
    """
    document = config.model_dump(exclude_none=True)
    sections = []
    if empty := {name: value for name, value in document.items() if not value}:
        sections.append(tomli_w.dumps(empty))
    for name, value in document.items():
        is_array = not isinstance(value, dict)
        for table in value if is_array else [value]:
            arrays = {key: inner for key, inner in table.items() if _is_tables(inner)}
            sections.append(_section((name,), {k: v for k, v in table.items() if k not in arrays}, is_array=is_array))
            sections += [_section((name, key), row, is_array=True) for key, rows in arrays.items() for row in rows]
    return "\n".join(sections)


def _is_tables(value: Any) -> bool:
    """Whether a value is an array of plugin tables, such as ``router.middleware``."""
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(v, dict) and "use" in v for v in value)


def _section(path: tuple[str, ...], table: dict[str, Any], *, is_array: bool) -> str:
    # tomli_w writes short arrays of tables on one line, so each is written as a table and made one of an array
    for key in reversed(path):
        table = {key: table}
    text = tomli_w.dumps(table)
    return f"[{text}".replace("]\n", "]]\n", 1) if is_array else text


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}", remedy="Check the path.") from None
    except IsADirectoryError:
        files = ", ".join(sorted(found.name for found in path.glob("*.toml"))) or "no .toml file"
        raise ConfigError(f"{path} is a directory; it holds {files}", remedy="Name the config file itself.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", remedy="Check its permissions.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}", remedy="Save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", remedy="Correct that line.") from None
