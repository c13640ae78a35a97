"""Routed experts on the wire: base64 of C-order little-endian int32, ``[rows, hidden layers, top_k]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pybase64

from miles_core.errors import RoutingError
from miles_core.types.routing import checked_rows, empty_rows, put_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from miles_core.types import RoutingSpec

_ITEM = np.dtype("<u4")
# what is decoded at once, in bytes: it stays in the processor's cache until it is narrowed
_CHUNK = 1 << 20


def decode_routing(encoded: Any, spec: RoutingSpec, *, tokens: int, start: int, sent_from: int) -> NDArray[Any]:
    """The rows from position ``start`` on, ``[tokens - 1 - start, MoE layers, top_k]``, checked.

    The reply to a sequence of ``tokens`` tokens starts at row ``sent_from``, or at 0 from an engine that does not know
    ``routed_experts_start_len``; rows before ``start`` are left out. Never holds more than a small part of the payload
    in its wire size.

    Raises:
        RoutingError: if the payload is no base64, does not hold exactly these rows, or they name impossible experts.
    """
    whole = max(0, tokens - 1)
    sent = _sent_rows(encoded, spec, whole=whole, asked=max(0, tokens - 1 - sent_from))
    first_row = whole - sent
    rows = empty_rows(max(0, whole - start), spec)
    left_out = sent - len(rows)
    # a multiple of three rows is whole base64 groups, whatever a row's size
    step = max(3, _CHUNK // _row_bytes(spec) // 3 * 3)
    for begin in range(left_out // 3 * 3, sent, step):
        end = min(sent, begin + step)
        wire = _decoded(encoded[_characters(begin, spec) : _characters(end, spec)], end - begin, spec)
        fresh = checked_rows(wire, spec, first_row=first_row + begin)
        known = max(0, left_out - begin)
        put_rows(rows, begin + known - left_out, fresh[known:])
    return rows


def _row_bytes(spec: RoutingSpec) -> int:
    return spec.num_layers * spec.top_k * _ITEM.itemsize


def _characters(rows: int, spec: RoutingSpec) -> int:
    """How many characters hold the first ``rows`` rows."""
    return -(-rows * _row_bytes(spec) // 3) * 4


def _decoded(encoded: str, rows: int, spec: RoutingSpec) -> NDArray[np.uint32]:
    raw = _base64(encoded)
    if len(raw) != rows * _row_bytes(spec):
        raise RoutingError("routed_experts is not base64: there is padding before its end")
    wire: NDArray[np.uint32] = np.frombuffer(raw, _ITEM).reshape(rows, spec.num_layers, spec.top_k)
    return wire


def _base64(encoded: str) -> bytes:
    try:
        return pybase64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise RoutingError(f"routed_experts is not base64: {error}") from error


def _sent_rows(encoded: Any, spec: RoutingSpec, *, whole: int, asked: int) -> int:
    """How many rows came: those asked for, or the whole sequence's."""
    if not isinstance(encoded, str):
        raise RoutingError(f"routed_experts must be a base64 text; got {type(encoded).__name__}")
    for rows in (asked, whole):
        padding = -rows * _row_bytes(spec) % 3
        if len(encoded) == _characters(rows, spec) and encoded[-2:].count("=") == padding:
            return rows
    raise RoutingError(
        _wrong_size(len(_base64(encoded)), asked, spec),
        remedy="Check that the engine serves the model that the trainer trains, and that no proxy cuts replies.",
    )


def _wrong_size(came: int, rows: int, spec: RoutingSpec) -> str:
    expected = rows * _row_bytes(spec)
    message = (
        f"routed_experts must hold {expected} bytes: {rows} rows x {spec.num_layers} layers x {spec.top_k} experts "
        f"x {_ITEM.itemsize}; got {came}"
    )
    if came % _row_bytes(spec) == 0:
        return f"{message}, which is {came // _row_bytes(spec)} rows"
    if rows and came % (rows * _ITEM.itemsize) == 0:
        per_row = came // (rows * _ITEM.itemsize)
        return f"{message}, which is {per_row} experts per row instead of {spec.num_layers * spec.top_k}"
    return message
