"""What ``[rollout] generate`` names: a function, a class, or a foreign function through an adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.adapters import GENERATE, adapted
from miles_core.errors import ConfigError, MilesError, PluginError
from miles_core.lib.error_text import error_text
from miles_core.plugins.function_options import validate_options, with_options
from miles_core.plugins.functions import find_target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from miles_core.config.schema import GenerateTable
    from miles_core.kinds.base import PluginContext
    from miles_core.kinds.generate import EpisodeFunction

KEY = "rollout.generate"


def load_episode_function(
    table: GenerateTable, built_in: Mapping[str, EpisodeFunction]
) -> Callable[[PluginContext], EpisodeFunction]:
    """Import what the table names and check its options; returns what makes the function.

    Raises:
        PluginNotFound: if nothing answers to the table's ``use``.
        PluginError: if it cannot be imported, or is nothing that generates episodes.
        ConfigError: if an option is unknown, missing or wrong.
    """
    target = find_target(KEY, table.use, built_in)
    if not callable(target):
        raise PluginError(
            f"{KEY} = {table.use!r} is of type {type(target).__name__}; it must be a function",
            remedy="Write `async def generate(episode)`.",
        )
    if table.adapter is None and not isinstance(target, type):
        function = with_options(KEY, table.use, target, ("episode",), table.options)
        return lambda context: function
    factory = target if table.adapter is None else _adapted(table.adapter, table.use, target)
    config = _config(factory, table)
    return lambda context: _made(factory, table.use, config, context)


def _adapted(adapter: str, use: str, function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        return adapted(adapter, GENERATE, function)
    except PluginError as error:
        raise PluginError(f"{KEY} = {use!r}: {error.message}", remedy=error.remedy) from error


def _config(factory: Any, table: GenerateTable) -> Any:
    model = getattr(factory, "Config", None)
    if model is not None:
        return validate_options(KEY, table.use, model, table.options)
    if table.options:
        raise ConfigError(
            f"[{KEY}] use = {table.use!r}: unknown keys {', '.join(table.options)}; it takes no options",
            remedy="Remove these keys.",
        )
    return None


def _made(factory: Any, use: str, config: Any, context: PluginContext) -> EpisodeFunction:
    try:
        made: EpisodeFunction = factory(config, context)
    except MilesError as error:
        error.add_note(f"while making {KEY} = {use!r}")
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{KEY} = {use!r} failed to start: {error_text(error)}",
            remedy="Check its options, or repair it.",
        ) from error
    if not callable(made):
        raise PluginError(
            f"{KEY} = {use!r} made an object that cannot be called",
            remedy="Define `async def __call__(self, episode)` in the class.",
        )
    return made
