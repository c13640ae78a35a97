"""The options of a function that the config names: its keyword arguments, checked by its own annotations."""

from __future__ import annotations

import inspect
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints

from miles_core.errors import PluginError
from miles_core.lib.error_text import error_text
from miles_core.plugins.loading.configure import validated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import BaseModel


def with_options(
    key: str, text: str, function: Callable[..., Any], parameters: tuple[str, ...], options: Mapping[str, Any] | None
) -> Callable[..., Any]:
    """The function with its options as keyword arguments.

    Raises:
        PluginError: if it does not take ``parameters``.
        ConfigError: if an option is unknown, missing or wrong.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions of extension modules tell none
        return partial(function, **(options or {}))
    left = _parameters_left(f"{key} = {text!r}", signature, parameters, has_options=options is not None)
    try:
        model = _options_model(function, left)
    except Exception as error:
        raise PluginError(
            f"{key} = {text!r}: the options of {signature} cannot be checked: {error_text(error)}",
            remedy="Give its options annotations that pydantic knows, or none.",
        ) from error
    made = validated(model, f"[{key.removesuffix('.use')}] use = {text!r}", options or {})
    values = {name: getattr(made, name) for name in made.model_fields_set}
    values.update(made.model_extra or {})
    return partial(function, **values) if values else function


def write_as(parameters: tuple[str, ...]) -> str:
    """The remedy for what is no function of these parameters."""
    return f"Write `def function({', '.join(parameters)})`."


def _parameters_left(
    what: str, signature: inspect.Signature, parameters: tuple[str, ...], *, has_options: bool
) -> list[inspect.Parameter]:
    """What a function takes beside ``parameters``."""
    must = f"{what} must take ({', '.join(parameters)})"
    try:
        bound = signature.bind_partial(*parameters)
    except TypeError as error:
        raise PluginError(f"{must}; it takes {signature}: {error}", remedy=write_as(parameters)) from None
    left = [parameter for name, parameter in signature.parameters.items() if name not in bound.arguments]
    asked = [p for p in left if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if more := [p.name for p in asked if p.kind is p.POSITIONAL_ONLY or not has_options]:
        raise PluginError(f"{must}; it asks for {more[0]} too", remedy=write_as(parameters))
    return left


def _options_model(function: Callable[..., Any], left: Sequence[inspect.Parameter]) -> type[BaseModel]:
    """Parameters as a pydantic model; those whose name begins with ``_`` are no options."""
    from pydantic import ConfigDict, create_model

    fields: dict[str, Any] = {
        p.name: (_annotation(function, p), ... if p.default is p.empty else p.default)
        for p in left
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and not p.name.startswith("_")
    }
    config = ConfigDict(
        extra="allow" if any(p.kind is p.VAR_KEYWORD for p in left) else "forbid",
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )
    with warnings.catch_warnings():  # a parameter may have the name of a method of pydantic's
        warnings.simplefilter("ignore")
        return create_model("Options", __config__=config, **fields)


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The type of one parameter; any, where it cannot be told, as of names that are imported for type checkers only."""
    if parameter.annotation is parameter.empty:
        return Any
    holder = type("Options", (), {"__annotations__": {parameter.name: parameter.annotation}})
    try:
        hints = get_type_hints(holder, getattr(inspect.unwrap(function), "__globals__", {}), include_extras=True)
    except Exception:  # noqa: BLE001 - whatever the annotation does
        return Any
    return hints[parameter.name]
