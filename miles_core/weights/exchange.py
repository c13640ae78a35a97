"""JSON calls to a set of engines, with errors that name engine, stage and cause."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp
import anyio

from miles_core.errors import WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class RefusedError(WeightSyncError):
    """Every engine that failed is well and answered with a status that says no."""


class EngineExchange:
    """One HTTP exchange takes at most ``timeout`` seconds."""

    def __init__(self, urls: Sequence[str], http: aiohttp.ClientSession, *, timeout: float) -> None:
        self.urls = tuple(url.rstrip("/") for url in urls)
        self._http = http
        self._timeout = aiohttp.ClientTimeout(total=timeout)

    async def call(self, url: str, path: str, body: Mapping[str, Any] | None, *, stage: str) -> str:
        """The reply's text; a GET if ``body`` is ``None``.

        Raises:
            WeightSyncError: if the engine cannot be reached in time or refuses.
        """
        method = "GET" if body is None else "POST"
        try:
            async with self._http.request(method, url + path, json=body, timeout=self._timeout) as reply:
                text = await reply.text()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise WeightSyncError(
                f"engine {url}: {stage} failed: {type(error).__name__} {error}".rstrip(),
                remedy="See whether the engine still runs, and its log; a slow one needs a larger [weights] timeout.",
            ) from error
        if not reply.ok:
            reason, remedy = _refusal(text)
            raise RefusedError(f"engine {url}: {stage} was refused with status {reply.status}: {reason}", remedy=remedy)
        return text

    async def accepted(self, path: str, body: Mapping[str, Any], *, stage: str) -> list[dict[str, Any]]:
        """:meth:`all`, where each reply must be an object that does not say ``"success": false``.

        Raises:
            WeightSyncError: if any failed, or says so under a status that does not.
        """
        replies = await self.all(path, body, stage=stage)
        return [_success(url, text, stage) for url, text in zip(self.urls, replies, strict=True)]

    async def all(self, path: str, body: Mapping[str, Any] | None, *, stage: str) -> list[str]:
        """:meth:`call` on every engine at once; replies in the order of ``urls``.

        Raises:
            WeightSyncError: if any failed, after all have answered.
        """
        replies: dict[str, str] = {}
        failures: list[WeightSyncError] = []

        async def one(url: str) -> None:
            try:
                replies[url] = await self.call(url, path, body, stage=stage)
            except WeightSyncError as error:
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            for url in self.urls:
                tasks.start_soon(one, url)
        if failures:
            raise _joined(failures, len(self.urls))
        return [replies[url] for url in self.urls]


def _success(url: str, text: str, stage: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not body.get("success", True):
        raise RefusedError(f"engine {url}: {stage} did not succeed: {_refusal(text)[0]}")
    return body


def _joined(failures: Sequence[WeightSyncError], engines: int) -> WeightSyncError:
    if len(failures) == 1:
        return failures[0]
    messages = "; ".join(failure.message for failure in failures)
    refused = all(isinstance(failure, RefusedError) for failure in failures)
    error = (RefusedError if refused else WeightSyncError)(
        f"{len(failures)} of {engines} engines failed: {messages}", remedy=failures[0].remedy
    )
    error.__cause__ = failures[0]
    return error


def _refusal(text: str) -> tuple[str, str | None]:
    """Message and remedy of a body that says no, ours or SGLang's; an engine that is not ours may send anything."""
    try:
        body = json.loads(text)
        error = body.get("error", body)
        return str(error["message"]), error.get("remedy")
    except (ValueError, TypeError, KeyError, AttributeError):
        return text.strip()[:500] or "no reason given", None
