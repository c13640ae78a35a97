"""Environments of slime and Miles: ``build_env(sample=..., args=...)`` makes one for each episode."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from miles_core.adapters.slime.arguments import arguments
from miles_core.adapters.slime.call import check, keywords, number
from miles_core.adapters.slime.sample import sample_class
from miles_core.adapters.slime.to_slime import task_sample
from miles_core.errors import ConfigError, RolloutError
from miles_core.kinds.environments import Step
from miles_core.lib.calls import call
from miles_core.types import ImagePart, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.kinds.base import PluginContext
    from miles_core.kinds.environments import Environment, Observation
    from miles_core.types import Task

SIGNATURE = "build_env(sample=..., args=...)"


def adapt(function: Callable[..., Any]) -> Callable[[Any, PluginContext], Environment]:
    """A factory for what ``build_env`` makes: an object with ``reset()``, ``step(text)`` and perhaps ``close()``.

    Raises:
        PluginError: if it takes neither ``sample`` and ``args`` as keywords nor two arguments by position.
    """
    from pydantic import BaseModel, ConfigDict, Field

    if len(keywords(function, sample=None, args=None)) < 2:
        check(function, SIGNATURE, "sample", "args")

    class SlimeEnvironment:
        class Config(BaseModel):
            model_config = ConfigDict(extra="allow")
            show_reset: bool = Field(False, description="show what reset() returns; slime's loops do not")
            reward_key: str | None = Field(None, description="the entry of a step's info that is its reward")

        def __init__(self, config: Config, context: PluginContext) -> None:
            run = context.services.get("config")
            if run is not None and not run.get("rewards") and config.reward_key is None:
                raise ConfigError(
                    "environments of slime give no rewards, and the config has no [[rewards]]",
                    remedy="Name a reward model in [[rewards]], or set reward_key to an entry of each step's info.",
                )
            self._config = config
            self._args = arguments(context, config.model_dump(exclude={"show_reset"}))
            self._class = sample_class(function)
            self._made: Any = None

        async def reset(self, task: Task, seed: int) -> Any:
            self._made = await call(_build, function, task_sample(task, self._class), self._args)
            returned = await call(partial(self._made.reset, **keywords(self._made.reset, seed=seed)))
            observation = returned[0] if isinstance(returned, tuple) and len(returned) == 2 else returned
            return (observation or None) if self._config.show_reset else None

        async def step(self, response: Message) -> Step:
            returned = await call(self._made.step, response.text)
            if not isinstance(returned, tuple) or len(returned) != 3 or not isinstance(returned[2], dict | None):
                raise RolloutError(f"step() must return (observation, done, info); got {str(returned)[:200]}")
            observation, done, info = returned[0], bool(returned[1]), returned[2] or {}
            reward = number(info, self._config.reward_key) if self._config.reward_key else 0.0
            return Step(None if done else observation, done=done, reward=_present(reward), info=info)

        async def format_observation(self, observation: Observation) -> Message:
            if not hasattr(self._made, "format_observation"):
                return _message(_default(observation.text))
            return _message(await call(self._made.format_observation, observation.text))

        async def close(self) -> None:
            if hasattr(self._made, "close"):
                await call(self._made.close)

    return SlimeEnvironment


def _build(function: Callable[..., Any], sample: Any, args: Any) -> Any:
    named = keywords(function, sample=sample, args=args)
    return function(**named) if len(named) == 2 else function(sample, args)


def _present(reward: float | None) -> float:
    if reward is None:
        raise RolloutError("the step's reward is None", remedy="Let step() report a number at reward_key of its info.")
    return reward


def _default(observation: Any) -> Any:
    """The message of slime's base class: ``obs_str`` as the user's text."""
    if not isinstance(observation, dict):
        return {"role": "user", "content": str(observation)}
    images = [image for of_kind in (observation.get("multi_modal_data") or {}).values() for image in of_kind]
    content = [{"type": "image", "image": image} for image in images]
    return {"role": "user", "content": [*content, {"type": "text", "text": observation.get("obs_str", "")}]}


def _message(chat: Any) -> Message:
    if not isinstance(chat, dict):
        raise RolloutError(f"format_observation() must return a chat message; got {type(chat).__name__}")
    try:
        message = Message.from_chat(chat)
    except ValueError as error:
        raise RolloutError(f"format_observation() must return a chat message: {error}") from error
    if isinstance(message.content, str):
        return message
    if any(isinstance(part, ImagePart) for part in message.content):
        raise RolloutError("images are not supported by this version; send text")
    return Message(message.role, message.text)
