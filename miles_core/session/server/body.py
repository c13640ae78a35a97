"""The body of a request: JSON of bounded size, whose sender may leave."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NoReturn

import anyio

from miles_core.session.server.request import ClientError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope

_DRAIN_SECONDS = 10.0


class ClientGone(Exception):  # noqa: N818 - an event, not a fault
    """The client closed its connection."""


async def read_json(scope: Scope, receive: Receive, limit: int) -> dict[str, Any]:
    """The JSON object that a client sends; no body is an empty one.

    Raises:
        ClientError: if it is no JSON object, or has more than ``limit`` bytes: it is not kept then.
        ClientGone: if the client leaves before.
    """
    raw = await _read(scope, receive, limit)
    try:
        value = json.loads(raw, parse_constant=_refuse, parse_float=_finite) if raw.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ClientError(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise ClientError(f"the body must be a JSON object; got {type(value).__name__}", code="invalid_json")
    return value


async def _read(scope: Scope, receive: Receive, limit: int) -> bytes:
    chunks, size, more = list[bytes](), 0, True
    if _announced(scope) > limit:
        size = limit + 1
    while more and size <= limit:
        chunk, more = await _next(receive)
        chunks.append(chunk)
        size += len(chunk)
    if size <= limit:
        return b"".join(chunks)
    chunks.clear()
    if more:
        await _drain(receive)
    raise ClientError(
        f"the body has more than {limit} bytes",
        status=413,
        code="body_too_large",
        remedy="Send less, or raise session.max_body_bytes.",
    )


async def _drain(receive: Receive) -> None:
    """Throw away the rest for a while: clients read no answer before they have sent all."""
    more = True
    with anyio.move_on_after(_DRAIN_SECONDS):
        while more:
            _, more = await _next(receive)


async def _next(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


def _announced(scope: Scope) -> int:
    text = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(text) if text.isdigit() else 0


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):  # what is stored could not be written as JSON again
        raise ValueError(f"{number} is too large")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


async def while_connected(receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
    """Do ``work``, whose body was read; cancel it when the client leaves.

    Raises:
        ClientGone: if it left before the work was done; what the work raises comes out as it is.
    """
    gone = False
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            nonlocal gone
            while (await receive())["type"] != "http.disconnect":
                pass
            gone = True
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - raised again below, outside of the ExceptionGroup
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if gone:
        raise ClientGone
