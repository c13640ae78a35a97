"""A plugin's own options, validated by its ``Config`` model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.config.suggest import unknown_key
from miles_core.errors import ConfigError, PluginError
from miles_core.kinds import KINDS
from miles_core.lib.error_text import error_text, value_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pydantic import BaseModel

    from miles_core.plugins.reference import PluginRef

HOST_KEYS = frozenset({"use", "name", "weight", "adapter", "timeout"})
"""Keys of a plugin's table that belong to the host; no plugin may declare one."""


def config_model(factory: Any, ref: object, host_keys: Collection[str] = HOST_KEYS) -> type[BaseModel] | None:
    """The ``Config`` of a plugin, which errors call ``ref``; ``None`` if it takes no options.

    Raises:
        PluginError: if it is no pydantic model, or declares a key that belongs to the host.
    """
    model = getattr(factory, "Config", None)
    if model is None:
        return None
    from pydantic import BaseModel

    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise PluginError(
            f"the Config of {ref} is {value_text(model)}", remedy="Make it a subclass of pydantic.BaseModel."
        )
    if taken := sorted(_keys(model) & set(host_keys)):
        raise PluginError(
            f"the Config of {ref} declares {', '.join(taken)}, which belongs to the host",
            remedy=f"Rename {taken[0]} in the plugin's Config.",
        )
    return model


def table_of(ref: PluginRef) -> str:
    """Where the config names a plugin, and which that is."""
    return f'{KINDS[ref.kind].table} use = "{ref.name}" ({ref})'


def make_config(model: type[BaseModel] | None, where: str, options: Mapping[str, Any]) -> BaseModel | None:
    """An instance of the ``Config`` from the options that the user wrote at ``where``; ``None`` without a ``Config``.

    Raises:
        ConfigError: naming ``where`` and the keys; all errors together.
        PluginError: if the model itself fails.
    """
    if model is not None:
        return validated(model, where, options)
    if options:
        raise ConfigError(
            f"{where}: unknown keys {', '.join(options)}; it takes no options", remedy="Remove these keys."
        )
    return None


def validated(model: type[BaseModel], where: str, options: Mapping[str, Any]) -> BaseModel:
    """The same with a model that there is."""
    from pydantic import ValidationError

    from miles_core.config.explain import explain

    lines = _unknown_keys(model, options)
    config = None
    try:
        config = model.model_validate(dict(options))
    except ValidationError as error:
        lines = explain(error, model) + [line for line in lines if model.model_config.get("extra") != "forbid"]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(
            f"{where}: its Config failed: {error_text(error)}",
            remedy="Let its validators raise ValueError.",
        ) from error
    if lines or config is None:
        raise ConfigError(f"{where}:\n  " + "\n  ".join(lines), remedy="Correct these keys in the config file.")
    return config


def _unknown_keys(model: type[BaseModel], options: Mapping[str, Any]) -> list[str]:
    # A model that forgot `extra = "forbid"` would swallow typos in silence; only an explicit "allow" takes any key.
    if model.model_config.get("extra") == "allow":
        return []
    known = _keys(model)
    return [unknown_key(key, key, known) for key in options if key not in known]


def _keys(model: type[BaseModel]) -> set[str]:
    return {key for name, field in model.model_fields.items() for key in (name, field.alias) if key}
