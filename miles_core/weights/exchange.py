"""JSON calls to a set of engines; those that fail are left behind, with errors that name engine, stage and cause."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
import anyio

from miles_core.errors import WeightSyncError
from miles_core.lib.tasks import single_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

Result = TypeVar("Result")


class RefusedError(WeightSyncError):
    """An engine is well and said no; ``status`` is that of its reply if it said so by one."""

    status: int | None = None


class NoEngineError(WeightSyncError):
    """No engine is left; ``lost`` says why each is not."""

    lost: Mapping[str, WeightSyncError] = {}

    @property
    def refused(self) -> bool:
        """Whether all are well and said no: none of them will do better when it comes back."""
        return bool(self.lost) and all(isinstance(each, RefusedError) for each in self.lost.values())


@dataclass(frozen=True, slots=True)
class Call:
    """One request to an engine; a GET if ``body`` is ``None``."""

    url: str
    path: str
    body: Mapping[str, Any] | None = None


class EngineExchange:
    """Engines that take part in something, fewer as it goes on.

    One HTTP exchange takes at most ``timeout`` seconds. An engine that has not answered ``patience`` seconds after the
    first one did what it was asked is left behind too. ``lost`` says which were left behind, and why.
    """

    def __init__(
        self, urls: Sequence[str], http: aiohttp.ClientSession, *, timeout: float, patience: float | None = None
    ) -> None:
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._http = http
        self._timeout = timeout
        self._patience = timeout if patience is None else patience
        self.lost: dict[str, WeightSyncError] = {}

    @property
    def urls(self) -> tuple[str, ...]:
        """The engines that are not lost."""
        return tuple(url for url in self._urls if url not in self.lost)

    @property
    def timeout(self) -> float:
        """Seconds that one exchange takes at most."""
        return self._timeout

    @property
    def well(self) -> tuple[str, ...]:
        """The engines that are not lost, and those that are because they said no."""
        return tuple(url for url in self._urls if isinstance(self.lost.get(url), RefusedError | None))

    def lose(self, url: str, error: WeightSyncError) -> None:
        """Leave an engine behind; the first reason counts.

        Raises:
            NoEngineError: if it was the last one.
        """
        self.lost.setdefault(url, error)
        if not self.urls:
            raise self._none_left()

    async def call(self, call: Call, *, stage: str) -> str:
        """The reply's text.

        Raises:
            WeightSyncError: if the engine cannot be reached in time or refuses.
        """
        method = "GET" if call.body is None else "POST"
        timeout = aiohttp.ClientTimeout(total=self._timeout)
        try:
            async with self._http.request(method, call.url + call.path, json=call.body, timeout=timeout) as reply:
                text = await reply.text()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise WeightSyncError(
                f"engine {call.url}: {stage} failed: {type(error).__name__} {error}".rstrip(),
                remedy="See whether the engine still runs, and its log; a slow one needs a larger [weights] timeout.",
            ) from error
        if not reply.ok:
            refusal = _refused(call.url, f"{stage} was refused with status {reply.status}", text)
            refusal.status = reply.status
            raise refusal
        return text

    async def all(self, path: str, body: Mapping[str, Any] | None, *, stage: str) -> dict[str, str]:
        """:meth:`gather` of one call to every engine: the replies by engine."""
        calls = [Call(url, path, body) for url in self.urls]
        replies = await self.gather(calls, stage=stage)
        return {calls[number].url: reply for number, reply in replies.items()}

    async def accepted(self, path: str, body: Mapping[str, Any], *, stage: str) -> dict[str, dict[str, Any]]:
        """:meth:`all`, where each reply must be an object that does not say ``"success": false``."""
        found: dict[str, dict[str, Any]] = {}
        for url, text in (await self.all(path, body, stage=stage)).items():
            try:
                found[url] = _success(url, text, stage)
            except WeightSyncError as error:
                self.lose(url, error)
        return found

    async def gather(self, calls: Sequence[Call], *, stage: str) -> dict[int, str]:
        """All calls at once; the replies by the number of the call, without those of engines that are lost by then.

        Raises:
            NoEngineError: if no engine is left.
        """
        jobs = [(call.url, partial(self.call, call, stage=stage)) for call in calls]
        return await self._together(jobs, stage)

    async def each(
        self, work: Callable[[str], Awaitable[Result]], *, stage: str, urls: Sequence[str] | None = None
    ) -> dict[str, Result]:
        """``work`` for every engine, or those of ``urls``, at once; engines whose work raises our errors are lost.

        Raises:
            NoEngineError: if no engine is left.
        """
        asked = self.urls if urls is None else urls
        results = await self._together([(url, partial(work, url)) for url in asked], stage)
        return {asked[number]: result for number, result in results.items()}

    async def _together(
        self, jobs: Sequence[tuple[str, Callable[[], Awaitable[Result]]]], stage: str
    ) -> dict[int, Result]:
        results: dict[int, Result] = {}
        scopes = [anyio.CancelScope() for _ in jobs]
        first = anyio.Event()

        async def one(number: int) -> None:
            url, job = jobs[number]
            with scopes[number] as scope:
                try:
                    results[number] = await job()
                    first.set()  # one that fails at once says nothing of how long it takes
                except WeightSyncError as error:
                    self.lost.setdefault(url, error)
            if scope.cancelled_caught:
                self.lost.setdefault(url, self._late(url, stage))

        async def hurry() -> None:
            await first.wait()
            await anyio.sleep(self._patience)
            for scope in scopes:
                scope.cancel()

        with single_error():
            async with anyio.create_task_group() as watch:
                watch.start_soon(hurry)
                async with anyio.create_task_group() as tasks:
                    for number in range(len(jobs)):
                        tasks.start_soon(one, number)
                watch.cancel_scope.cancel()
        if not self.urls:
            raise self._none_left()
        return {number: result for number, result in results.items() if jobs[number][0] not in self.lost}

    def _late(self, url: str, stage: str) -> WeightSyncError:
        return WeightSyncError(
            f"engine {url}: {stage} took {self._patience:g} s longer than with another engine",
            remedy="See whether that engine is stopped or its host overloaded; a slow one needs [weights] patience.",
        )

    def _none_left(self) -> NoEngineError:
        errors = list(self.lost.values())
        if not errors:
            return NoEngineError("there is no engine")
        several = f"{len(errors)} of {len(self._urls)} engines failed: " if len(errors) > 1 else ""
        error = NoEngineError(several + "; ".join(each.message for each in errors), remedy=errors[0].remedy)
        error.lost = dict(self.lost)
        error.__cause__ = errors[0]
        return error


def foreign_answer(url: str, path: str, error: Exception) -> RefusedError:
    """Of an engine whose answer cannot be read."""
    return RefusedError(
        f"engine {url}: {path} answered what this version does not know: {type(error).__name__} {error}",
        remedy="Run the same version of miles in driver and engines.",
    )


def _refused(url: str, what: str, text: str) -> RefusedError:
    reason, remedy = _refusal(text)
    return RefusedError(f"engine {url}: {what}: {reason}", remedy=remedy)


def _success(url: str, text: str, stage: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not body.get("success", True):
        raise _refused(url, f"{stage} did not succeed", text)
    return body


def _refusal(text: str) -> tuple[str, str | None]:
    """Message and remedy of a body that says no, ours or SGLang's; an engine that is not ours may send anything."""
    try:
        body = json.loads(text)
        error = body.get("error", body)
        return str(error["message"]), error.get("remedy")
    except (ValueError, TypeError, KeyError, AttributeError):
        return text.strip()[:500] or "no reason given", None
