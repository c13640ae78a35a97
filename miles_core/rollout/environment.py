"""Calls into an environment: off the event loop where they block, with time-outs, with checked results."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import anyio

from miles_core.errors import MilesError, RolloutError
from miles_core.kinds.environments import Observation, Step
from miles_core.lib.calls import call
from miles_core.lib.numbers import is_finite
from miles_core.types import Message

if TYPE_CHECKING:
    from miles_core.kinds.environments import Environment
    from miles_core.types import Task


logger = logging.getLogger("miles.rollout")


class EnvironmentRunner:
    """One episode's environment; ``name`` is how errors call it."""

    def __init__(self, environment: Environment, name: str, timeout: float) -> None:
        self._environment = environment
        self._name = name
        self._timeout = timeout

    async def reset(self, task: Task, seed: int) -> Message | None:
        """Begin the episode; what it shows first, as a message."""
        observation = await self._call("reset", task, seed)
        return None if observation is None else await self.message(observation)

    async def step(self, response: Message) -> Step:
        """Act on the policy's turn.

        Raises:
            RolloutError: if the environment raises, hangs or returns something else than a Step.
        """
        step = await self._call("step", response)
        if not isinstance(step, Step):
            raise RolloutError(f"environment {self._name}: step() must return a Step; got {type(step).__name__}")
        number = isinstance(step.reward, int | float) and not isinstance(step.reward, bool)
        if not number or not is_finite(step.reward):
            raise RolloutError(
                f"environment {self._name}: a step's reward must be a finite number; got {step.reward!r}"
            )
        if step.observation is None and not step.done and not step.truncated:
            raise RolloutError(
                f"environment {self._name}: step() returned no observation although the episode goes on",
                remedy="Return an observation, or done=True.",
            )
        return step

    async def message(self, observation: Any) -> Message:
        """The chat message that carries an observation: an ``Observation``, text or a JSON value."""
        if not isinstance(observation, Observation):
            observation = Observation(observation)
        if hasattr(self._environment, "format_observation"):
            message = await self._call("format_observation", observation)
            if not isinstance(message, Message):
                raise RolloutError(
                    f"environment {self._name}: format_observation() must return a Message; "
                    f"got {type(message).__name__}"
                )
            return message
        if observation.multi_modal_data:
            raise RolloutError(f"environment {self._name}: images are not supported by this version; send text")
        return Message(observation.role, self._text(observation.text))

    async def close(self) -> None:
        """Release the environment, also while the episode is being cancelled; a failure here is only logged."""
        with anyio.move_on_after(self._timeout, shield=True) as scope:
            try:
                await call(self._environment.close)
            except Exception as error:  # noqa: BLE001 - the episode is over, its result stands
                logger.warning("environment %s: close() raised %s: %s", self._name, type(error).__name__, error)
        if scope.cancelled_caught:
            logger.warning("environment %s: close() took longer than %g s", self._name, self._timeout)

    def _text(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        try:
            return json.dumps(value, ensure_ascii=False)
        except TypeError:
            raise RolloutError(
                f"environment {self._name}: an observation must be text or a JSON value; got {type(value).__name__}"
            ) from None

    async def _call(self, method: str, *arguments: Any) -> Any:
        with anyio.move_on_after(self._timeout):
            try:
                return await call(getattr(self._environment, method), *arguments)
            except MilesError:
                raise
            except Exception as error:
                raise RolloutError(
                    f"environment {self._name}: {method}() raised {type(error).__name__}: {error}"
                ) from error
        raise RolloutError(
            f"environment {self._name}: {method}() took longer than {self._timeout:g} s",
            remedy="Raise the environment's `timeout`, or find what hangs.",
        )
