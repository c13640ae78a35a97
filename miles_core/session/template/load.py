"""Templates from files and from model directories."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from miles_core.errors import ConfigError
from miles_core.session.template.render import ChatTemplate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
_FILE = "chat_template.jinja"


def load_template(path: Path, variables: Mapping[str, Any], clock: datetime | None = None) -> ChatTemplate:
    """The template of a file or a model directory; ``variables`` win over the directory's special tokens.

    Raises:
        ConfigError: if there is no template.
    """
    directory = path if path.is_dir() else path.parent
    config = _json(directory / "tokenizer_config.json") if path.is_dir() or path.name == _FILE else {}
    file = path / _FILE if path.is_dir() else path
    source = _read(file) if file.is_file() else _named(config.get("chat_template")) if path.is_dir() else None
    if source is None:
        raise ConfigError(
            f"no chat template at {path}: expected a template's file, or a directory with {_FILE}",
            remedy="Name a Jinja file or a local Hugging Face model directory.",
        )
    tokens = {name: _token(config[name]) for name in SPECIAL_TOKENS if config.get(name)}
    given = {**tokens, **variables}
    # Some templates add their tokens to texts, which fails with what is not defined; printed, both are nothing.
    given.setdefault("bos_token", "")
    return ChatTemplate(source, given, clock)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the chat template {path}: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _named(template: Any) -> str | None:
    """A template, or of several named ones the default."""
    if isinstance(template, list):
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _token(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value)
