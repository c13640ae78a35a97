"""Calls into an environment: off the event loop where they block, with time-outs, with checked results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio

from miles_core.errors import MilesError, RolloutError
from miles_core.kinds.environments import Observation, Step
from miles_core.lib.calls import call
from miles_core.lib.error_text import error_text, value_text
from miles_core.lib.numbers import is_finite
from miles_core.lib.plugin_calls import CallTimeoutError, PluginCalls
from miles_core.types import Message
from miles_core.types.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.kinds.environments import AgentEnvironment, AgentSession, Environment
    from miles_core.rollout.agents import AgentPlayer
    from miles_core.types import Task


class EnvironmentRunner:
    """One episode's environment; it is made by ``make`` when the episode begins, where it is not given.

    ``blocks`` is false where ``reset``, or an agent's ``run``, is a coroutine function: such a class is made on the
    event loop as well. ``player`` runs the environment where it is an agent.

    ``name`` is how errors call it unless ``calls``, those into the plugin, say it. What it gets is read-only.
    """

    def __init__(
        self,
        environment: Environment | AgentEnvironment | None,
        name: str,
        timeout: float,
        calls: PluginCalls | None = None,
        *,
        make: Callable[[], Environment | AgentEnvironment] | None = None,
        blocks: bool = True,
        player: AgentPlayer | None = None,
    ) -> None:
        self.player = player
        self._environment: Any = environment
        self._make = make
        self._blocks = blocks
        self._calls = calls or PluginCalls(name, f"environment {name}")
        self.title = self._calls.title
        self._timeout = timeout

    async def run(self, task: Task, session: AgentSession) -> Any:
        """What an agent's ``run`` returns; it takes the time that the episode has, and raises what it raises."""
        if self._blocks:
            return await call(self._run_blocking, frozen(task), session)
        return await call(self._run_here, frozen(task), session)

    def _run_blocking(self, task: Task, session: AgentSession) -> Any:
        return self._made().run(task, session)

    async def _run_here(self, task: Task, session: AgentSession) -> Any:
        return await self._made().run(task, session)

    async def reset(self, task: Task, seed: int) -> Message | None:
        """Begin the episode; what it shows first, as a message."""
        begin = self._begin if self._blocks else self._begin_here
        observation = await self._run("reset", begin, frozen(task), seed)
        return None if observation is None else await self.message(observation)

    def _begin(self, task: Task, seed: int) -> Any:
        return self._made().reset(task, seed)

    def _made(self) -> Any:
        """The environment, made the first time, which may block as well."""
        if self._environment is None:
            assert self._make is not None
            self._environment = self._make()
        return self._environment

    async def _begin_here(self, task: Task, seed: int) -> Any:
        return await self._begin(task, seed)

    async def step(self, response: Message) -> Step:
        """Act on the policy's turn.

        Raises:
            RolloutError: if the environment raises, hangs or returns something else than a Step.
        """
        step = await self._call("step", frozen(response))
        if not isinstance(step, Step):
            raise RolloutError(f"{self.title}: step() must return a Step; got {type(step).__name__}")
        number = isinstance(step.reward, int | float) and not isinstance(step.reward, bool)
        if not number or not is_finite(step.reward):
            raise RolloutError(f"{self.title}: a step's reward must be a finite number; got {value_text(step.reward)}")
        if step.observation is None and not step.done and not step.truncated:
            raise RolloutError(
                f"{self.title}: step() returned no observation although the episode goes on",
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
                    f"{self.title}: format_observation() must return a Message; got {type(message).__name__}"
                )
            return message
        if observation.multi_modal_data:
            raise RolloutError(f"{self.title}: images are not supported by this version; send text")
        return Message(observation.role, self._text(observation.text))

    async def close(self) -> None:
        """Release the environment, also while the episode is being cancelled; a failure here is only logged."""
        if getattr(self._environment, "close", None) is None:
            return  # not made, or an agent that has none
        with anyio.CancelScope(shield=True):
            try:
                await self._calls("close", self._environment.close, limit=self._timeout)
            except CallTimeoutError as error:
                self._calls.warn(f"close() {error}")
            except Exception as error:  # noqa: BLE001 - the episode is over, its result stands
                self._calls.warn(f"close() raised {error_text(error)}")

    def _text(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        try:
            return json.dumps(value, ensure_ascii=False)
        except TypeError:
            raise RolloutError(
                f"{self.title}: an observation must be text or a JSON value; got {type(value).__name__}"
            ) from None

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await self._run(method, getattr(self._environment, method), *arguments)

    async def _run(self, method: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await self._calls(method, function, *arguments, limit=self._timeout)
        except MilesError:
            raise
        except CallTimeoutError as error:
            raise RolloutError(
                f"{self.title}: {method}() {error}",
                remedy="Raise the environment's `timeout`, or find what hangs.",
            ) from None
        except Exception as error:
            raise RolloutError(f"{self.title}: {method}() raised {error_text(error)}") from error
