"""One request of a client: a prompt, the turns generated after it, the answer."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from miles_core.errors import SessionError
from miles_core.session.rendering import RendererError
from miles_core.session.server.answer import Answer, Choice
from miles_core.session.server.failures import closed
from miles_core.session.server.request import ClientError
from miles_core.session.server.tool_results import check_tool_results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from miles_core.kinds.sessions import OnTokens, Prompt, SamplingRequest, Turn
    from miles_core.session.registry import OpenSession, SessionRegistry
    from miles_core.session.served import Served
    from miles_core.session.server.request import ChatRequest


def prepared(served: Served, request: ChatRequest) -> Prompt:
    """The prompt that a request asks to be continued.

    Raises:
        ClientError: if the messages cannot be appended, with the template's own words.
        RendererError: if a renderer of somebody's own is broken.
    """
    if not request.messages:
        raise ClientError("a conversation needs at least one message; got none", param="messages")
    check_tool_results(request.messages)
    try:
        prompt = served.prepare(request.messages, request.tools)
    except RendererError:
        raise
    except SessionError as error:
        raise ClientError(error.message, param="messages", remedy=error.remedy) from error
    return prompt if request.parse_calls else replace(prompt, parse_calls=False)


class Exchange:
    """The ``n`` turns of a request, generated at the same time: siblings in the session's tree."""

    def __init__(self, registry: SessionRegistry, opened: OpenSession, request: ChatRequest, *, model: str) -> None:
        self.request = request
        self.served = opened.served
        self.prompt = prepared(opened.served, request)
        self.id = secrets.token_hex(12)
        self.created = int(time.time())
        self.model = request.model or model
        self._registry = registry
        self._opened = opened

    async def answer(self, on_tokens: Callable[[int, Sequence[int]], None] | None = None) -> Answer:
        """Generate; ``on_tokens`` gets the index of a choice and its output ids as they come.

        The first failure ends the other turns and is raised; those that were whole by then stay stored.

        Raises:
            ClientError: if the session is closed meanwhile.
            MilesError: as :meth:`miles_core.session.served.Served.generate`.
        """
        with self._registry.using(self._opened) as use:
            answer = self._answer(await self._turns(on_tokens))
            if self.request.answered is not None:
                self.request.answered(answer)
        if use.cancelled_caught:
            raise closed()
        return answer

    async def _turns(self, on_tokens: Callable[[int, Sequence[int]], None] | None) -> list[Turn]:
        turns: dict[int, Turn] = {}
        failures: list[Exception] = []

        async def one(index: int) -> None:
            feed: OnTokens | None = None if on_tokens is None else partial(on_tokens, index)
            try:
                turns[index] = await self.served.generate(self.prompt, self._sampling(index), on_tokens=feed)
            except Exception as error:  # noqa: BLE001 - raised again below, outside of the ExceptionGroup
                failures.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for index in range(self.request.n):
                tasks.start_soon(one, index)
        if failures:
            raise failures[0]
        return [turns[index] for index in range(self.request.n)]

    def _sampling(self, index: int) -> SamplingRequest:
        """Seeds count up, or all choices would be the same."""
        wanted = self.request.sampling
        return wanted if wanted.seed is None else replace(wanted, seed=wanted.seed + index)

    def _answer(self, turns: Sequence[Turn]) -> Answer:
        return Answer(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=tuple(Choice(index, turn, self.served.session.decode) for index, turn in enumerate(turns)),
            prompt_tokens=len(self.prompt.input_ids),
            completion_tokens=sum(len(turn.generation.output_ids) for turn in turns),
            cached_tokens=max(turn.generation.cached_tokens for turn in turns),
        )
