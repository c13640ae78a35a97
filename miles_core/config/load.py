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
            remedy="correct these keys; `miles config reference` describes them all",
        ) from None
    absolute = path.resolve()
    return LoadedConfig(config, absolute, absolute.parent / (config.run.base_dir or ""))


def dump_config(config: Config) -> str:
    """The whole config as TOML, defaults and plugin options included; keys without a value are left out."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}", remedy="check the path") from None
    except IsADirectoryError:
        files = ", ".join(sorted(found.name for found in path.glob("*.toml"))) or "no .toml file"
        raise ConfigError(f"{path} is a directory; it holds {files}", remedy="name the config file itself") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", remedy="check its permissions") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}", remedy="save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", remedy="correct that line") from None
