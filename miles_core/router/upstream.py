"""The HTTP client towards workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import aiohttp
from yarl import URL

from miles_core.errors import RouterError
from miles_core.router.headers import RawHeaders, response_headers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from multidict import CIMultiDict

    from miles_core.router.body import RequestBody
    from miles_core.router.settings import RouterSettings

# Below uvicorn's five seconds, so that a request seldom meets a connection that its worker is just closing.
_KEEPALIVE_SECONDS = 2.0
_READ_BUFFER_BYTES = 1 << 18
_BROKEN = (aiohttp.ClientError, OSError)
_REMEDY = "Look at the worker's log; if it is gone, remove it with DELETE /workers?url=."
# aiohttp adds these on its own; a worker must see the client's headers only.
_AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class UpstreamError(RouterError):
    """A worker could not be reached, or broke off its answer."""


class UnreachableError(UpstreamError):
    """There was no connection to a worker, so it has not seen the request."""


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """What goes to a worker; ``target`` is path and query string as the client wrote them."""

    method: str
    target: str
    headers: CIMultiDict[str]
    body: RequestBody


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's answer: all of it in ``start`` if ``complete``, else the rest comes from ``chunks``."""

    url: str
    status: int
    headers: RawHeaders
    retry_after: str | None
    start: bytes
    complete: bool
    response: aiohttp.ClientResponse

    async def chunks(self) -> AsyncIterator[bytes]:
        """What follows ``start``.

        Raises:
            UpstreamError: if the worker breaks off.
        """
        try:
            while chunk := await self.response.content.readany():
                yield chunk
        except _BROKEN as error:
            raise _broken_off(self.url, error) from error

    def close(self) -> None:
        """Give the connection back if the answer was read to its end, otherwise close it, which aborts the engine."""
        self.response.release()


class Upstream:
    """One client session, open inside ``async with``: a time-out to connect, none to answer, no connection limit."""

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._settings.connect_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_AUTO_HEADERS,
            read_bufsize=_READ_BUFFER_BYTES,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def open(self, url: str, request: UpstreamRequest) -> Answer:
        """Send the request to the worker at ``url`` and wait for the first bytes of its answer's body.

        Raises:
            UpstreamError: if there is no connection, or it breaks before that.
        """
        try:
            response = await self._request(url, request)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise UnreachableError(f"worker {url} cannot be reached: {error}", remedy=_REMEDY) from error
        except _BROKEN as error:
            raise _broken_off(url, error) from error
        try:
            return await self._begin(url, response)
        except _BROKEN as error:
            response.close()
            raise _broken_off(url, error) from error
        except BaseException:
            response.close()
            raise

    async def _request(self, url: str, request: UpstreamRequest) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RouterError(
                "the router has not started", remedy="Let every router middleware pass the `lifespan` scope on."
            )
        return await self._session.request(
            request.method,
            URL(url + request.target, encoded=True),
            headers=request.headers,
            data=request.body.payload(),
            allow_redirects=False,
        )

    async def _begin(self, url: str, response: aiohttp.ClientResponse) -> Answer:
        headers = response_headers(response.raw_headers, response.status)
        length = next((int(value) for name, value in headers if name == b"content-length"), None)
        small = length is not None and length <= self._settings.max_buffered_bytes
        start = await (response.content.read() if small else response.content.readany())
        retry_after = response.headers.get("retry-after")
        return Answer(url, response.status, headers, retry_after, start, small or not start, response)


def _broken_off(url: str, cause: Exception) -> UpstreamError:
    return UpstreamError(f"worker {url} broke off its answer: {type(cause).__name__}: {cause}", remedy=_REMEDY)
