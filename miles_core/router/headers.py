"""Which headers cross the proxy (RFC 9110, section 7.6.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from multidict import CIMultiDict

if TYPE_CHECKING:
    from collections.abc import Iterable

RawHeaders: TypeAlias = "list[tuple[bytes, bytes]]"

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# A middleware may have rewritten the body, so its length is counted again; the server has answered `expect` already.
_NOT_FOR_WORKERS = HOP_BY_HOP | {b"host", b"content-length", b"expect"}


def request_headers(raw: Iterable[tuple[bytes, bytes]]) -> CIMultiDict[str]:
    """The headers that go to a worker; ``raw`` names are lower case, as ASGI has them."""
    pairs = list(raw)
    dropped = _NOT_FOR_WORKERS | _named_by_connection(pairs)
    return CIMultiDict(
        (name.decode("latin-1"), value.decode("utf-8", "replace")) for name, value in pairs if name not in dropped
    )


def response_headers(raw: Iterable[tuple[bytes, bytes]], status: int) -> RawHeaders:
    """The headers that go to the client, names in lower case; a 304 has no body that ``content-length`` measures."""
    pairs = [(name.lower(), value) for name, value in raw]
    dropped = HOP_BY_HOP | _named_by_connection(pairs)
    if status == 304:
        dropped |= {b"content-length"}
    return [pair for pair in pairs if pair[0] not in dropped]


def _named_by_connection(pairs: RawHeaders) -> frozenset[bytes]:
    for name, value in pairs:
        if name == b"connection":
            return frozenset(
                token.strip().lower() for name, value in pairs if name == b"connection" for token in value.split(b",")
            )
    return frozenset()
