"""What ``[rollout] generate`` names: a function, a class, or a foreign function through an adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miles_core.adapters import GENERATE, adapted
from miles_core.errors import MilesError, PluginError
from miles_core.lib.error_text import error_text
from miles_core.plugins.functions.options import with_options
from miles_core.plugins.functions.resolve import find_target
from miles_core.plugins.loading.configure import config_model, make_config

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
    factory: Callable[..., Any] = target
    if table.adapter is not None:
        factory = adapted(f"{KEY} = {table.use!r}", table.adapter, GENERATE, target)
    model = config_model(factory, f"{KEY} = {table.use!r}", type(table).model_fields)
    config = make_config(model, f"[{KEY}] use = {table.use!r}", table.options)
    return lambda context: _made(factory, table.use, config, context)


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
