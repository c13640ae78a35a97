"""``/weights/*`` on the server's own port: the front, in its HTTP process, asks the receivers of its ranks."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import anyio
from starlette.responses import JSONResponse, Response

from miles_core.app.sglang_receiver.ranks import SILENCE_SECONDS, ask, statuses
from miles_core.errors import EngineError, WeightSyncError
from miles_core.weights.routes import error_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request

    from miles_core.app.sglang_receiver.ranks import Answer

CALLS = ("begin", "receive", "verify", "commit", "abort", "checksums")


class Front:
    """One server: its number of ranks, and SGLang's tokenizer manager, which knows whether it is paused."""

    def __init__(self, count: int, manager: Any) -> None:
        self._count = count
        self._manager = manager
        self._lock = anyio.Lock()  # an update does not begin while generation resumes or memory is being released

    def endpoints(self) -> Mapping[str, tuple[str, Callable[[Request], Awaitable[Response]]]]:
        """Method and handler by path."""
        posts = {f"/weights/{name}": ("POST", partial(self._forward, name)) for name in CALLS}
        return {"/weights/layout": ("GET", self._layout), **posts}

    async def check_service(self) -> None:
        """Refuse to generate on weights that must not serve.

        Raises:
            WeightSyncError: with the reason.
            EngineError: if a rank does not answer.
        """
        for rank, status in enumerate(await statuses(self._count)):
            if status["reason"] is not None:
                raise WeightSyncError(f"rank {rank} of this server is out of service: {status['reason']}")

    async def resume(self, resume: Callable[[], Awaitable[None]]) -> None:
        """Resume generation, unless an update is open or the weights must not serve.

        Raises:
            WeightSyncError: if so.
            EngineError: if a rank does not answer.
        """
        async with self._lock:
            await self.check_service()
            await self._check_closed("generation cannot resume")
            await resume()

    async def release(self, release: Callable[[], Awaitable[None]]) -> None:
        """Release memory, unless an update is open.

        Raises:
            WeightSyncError: if so.
            EngineError: if a rank does not answer.
        """
        async with self._lock:
            await self._check_closed("the memory cannot be released")
            await release()

    async def _check_closed(self, what: str) -> None:
        for rank, status in enumerate(await statuses(self._count)):
            if status["open"] is not None:
                raise WeightSyncError(
                    f"{what}: rank {rank} has an open update to version {status['open']}",
                    remedy="Commit or abort it first.",
                )

    async def _layout(self, _: Request) -> Response:
        answers: list[dict[str, Any]] = []
        for rank in range(self._count):
            try:
                answer = await ask(rank, "GET", "/weights/layout")
            except EngineError as error:
                return error_response(503, error)
            if answer.status != HTTPStatus.OK:
                return _response(answer)
            answers.append(json.loads(answer.body))
        return JSONResponse(_merged(answers))

    async def _forward(self, name: str, request: Request) -> Response:
        given = request.query_params.get("rank", "0")
        rank = int(given) if given.isdecimal() else -1
        if not 0 <= rank < self._count:
            message = f"the ranks of this engine are 0 to {self._count - 1}; got {given!r}"
            return error_response(400, WeightSyncError(message, remedy="Name one of them."))
        body = await request.body()
        try:
            answer = await self._begin(rank, body) if name == "begin" else await _post(rank, name, body)
        except WeightSyncError as error:
            return error_response(409, error)
        except EngineError as error:
            return error_response(503, error)
        return _response(answer)

    async def _begin(self, rank: int, body: bytes) -> Answer:
        async with self._lock:
            if not self._manager.is_pause:
                raise WeightSyncError(
                    "an update needs a paused engine; this one generates",
                    remedy="Call /pause_generation before the update.",
                )
            await self._wait_for_pause()
            return await _post(rank, "begin", body)

    async def _wait_for_pause(self) -> None:
        """SGLang answers a pause before its schedulers know; what they are asked later finds it done.

        Raises:
            EngineError: if they do not answer.
        """
        asked = asyncio.create_task(self._manager.get_internal_state())
        # not cancelled: the manager could ask nothing of this kind again
        done, _ = await asyncio.wait({asked}, timeout=SILENCE_SECONDS)
        if not done:
            raise EngineError(
                f"the schedulers of this server have not answered for {SILENCE_SECONDS:g} s",
                remedy="Look whether one is stopped or hangs; restart the server.",
            )
        await asked


async def _post(rank: int, name: str, body: bytes) -> Answer:
    return await ask(rank, "POST", f"/weights/{name}", body)


def _response(answer: Answer) -> Response:
    return Response(answer.body, answer.status, media_type=answer.media_type)


def _merged(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The layouts of all ranks as one."""
    versions = {answer["version"] for answer in answers}
    transports = answers[0]["transports"]
    for answer in answers:  # what one rank cannot use, the server cannot
        transports |= {name: reason for name, reason in answer["transports"].items() if reason is not None}
    return {
        **answers[0],
        "ranks": [table for answer in answers for table in answer["ranks"]],
        "version": min(versions),
        # ranks of different versions were left so by an update that was cut between their commits
        "torn": len(versions) > 1 or any(answer["torn"] for answer in answers),
        "transports": transports,
    }
