"""The receiver over HTTP: ``/weights/{layout,begin,receive,verify,commit,abort,checksums}``, JSON in and out."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from miles_core.errors import MilesError, WeightSyncError
from miles_core.types import Bucket, Placement
from miles_core.types.weights import ITEM_BYTES
from miles_core.weights.host import host_id
from miles_core.weights.receive import ReceiverStatus, WeightReceiver


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Version(_Body):
    version: int = Field(ge=0)


class _Begin(_Version):
    transport: str = Field(min_length=1)


class _Receive(_Version):
    bucket: dict[str, Any]
    delivery: dict[str, Any]


class _Verify(_Version):
    checksums: dict[str, list[str]]


class _Commit(_Version):
    padding: int = Field(0, ge=0)


class _Checksums(_Body):
    placements: list[list[Any]]


def routes(
    receiver: WeightReceiver, transports: Callable[[], Mapping[str, str | None]] = dict[str, str | None]
) -> list[Route]:
    """What an engine of one rank mounts; every update call answers ``{"version", "torn"}`` and more.

    ``transports`` says by name why one cannot be used here, or ``None``. A body that is not what the call expects is a
    400, a call that does not fit the update's state a 409.
    """

    async def layout(_: Request) -> JSONResponse:
        ranks = [receiver.table.to_json()]
        facts = {"host": host_id(), "transports": dict(transports())}
        return JSONResponse({"ranks": ranks, **asdict(receiver.status), **facts})

    calls: dict[str, tuple[type[_Body], Callable[..., object]]] = {
        "begin": (_Begin, receiver.begin),
        "receive": (_Receive, partial(_receive, receiver)),
        "verify": (_Verify, partial(_verify, receiver)),
        "commit": (_Commit, receiver.commit),
        "abort": (_Body, receiver.abort),
        "checksums": (_Checksums, partial(_checksums, receiver)),
    }
    posts = [
        Route(f"/weights/{name}", partial(_answer, receiver, model, call), methods=["POST"])
        for name, (model, call) in calls.items()
    ]
    return [Route("/weights/layout", layout, methods=["GET"]), *posts]


def _receive(receiver: WeightReceiver, version: int, bucket: dict[str, Any], delivery: dict[str, Any]) -> None:
    receiver.receive(version, _parsed("bucket", _bucket, bucket), delivery)


def _verify(receiver: WeightReceiver, version: int, checksums: dict[str, list[str]]) -> None:
    receiver.verify(version, _parsed("checksums", _by_index, checksums))


def _checksums(receiver: WeightReceiver, placements: list[list[Any]]) -> object:
    return receiver.checksums(_parsed("placements", _placements, placements))


def _by_index(checksums: dict[str, list[str]]) -> dict[int, list[str]]:
    return {int(index): values for index, values in checksums.items()}


def _bucket(data: dict[str, Any]) -> Bucket:
    bucket = Bucket.from_json(data)
    _require_counts("index, nbytes and stream", [bucket.index, bucket.nbytes, bucket.stream])
    for placement in bucket.placements:
        _check_form(placement)
    return bucket


def _placements(rows: list[list[Any]]) -> list[Placement]:
    placements = [Placement.from_json(row) for row in rows]
    for placement in placements:
        _check_form(placement)
    return placements


def _check_form(placement: Placement) -> None:
    spec = placement.tensor
    texts = (spec.name, placement.parameter, spec.dtype)
    if not all(isinstance(text, str) for text in texts) or spec.dtype not in ITEM_BYTES:
        raise ValueError(f"names of a tensor and a parameter, and a type are expected, got {texts}")
    region = [bound for bounds in placement.region for bound in bounds]
    _require_counts(
        "shape, region, offset and strides", [*spec.shape, *region, placement.offset, *(placement.strides or ())]
    )


def _require_counts(what: str, values: list[Any]) -> None:
    if not all(type(value) is int and value >= 0 for value in values):
        raise ValueError(f"{what} must be whole numbers from 0 on, got {values}")


class _MalformedError(Exception):
    """A body whose inner form is wrong."""


def _parsed(what: str, parse: Callable[[Any], Any], data: Any) -> Any:
    try:
        return parse(data)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise _MalformedError(f"{what}: {type(error).__name__} {error}") from error


async def _answer(
    receiver: WeightReceiver, model: type[_Body], call: Callable[..., object], request: Request
) -> JSONResponse:
    rank = request.query_params.get("rank", "0")
    if rank != "0":
        return error_response(400, WeightSyncError(f"this engine has one rank, 0; got rank {rank!r}"))
    try:
        body = model.model_validate_json(await request.body())
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in error.errors())
        return error_response(400, WeightSyncError(_expectation(model, found)))
    arguments = {name: getattr(body, name) for name in model.model_fields}
    try:
        answer = await anyio.to_thread.run_sync(partial(call, **arguments))
    except _MalformedError as error:
        return error_response(400, WeightSyncError(_expectation(model, str(error))))
    except MilesError as error:  # also of the plugins that are to make a transport
        return error_response(409, error)
    return JSONResponse(asdict(answer if isinstance(answer, ReceiverStatus) else receiver.status))


def _expectation(model: type[BaseModel], found: str) -> str:
    return f"expected a JSON body {json.dumps(_example(model))}; {found}"


def _example(model: type[BaseModel]) -> dict[str, object]:
    placement = ["tensor", "bfloat16", [2, 3], [[0, 2], [0, 3]], "parameter", 0, None]
    values: dict[str, object] = {
        "version": 1,
        "transport": "memory",
        "bucket": {"index": 0, "placements": [placement], "nbytes": 12, "stream": 0},
        "delivery": {"...": "..."},
        "checksums": {"0": ["xxh3-128 of the first box of bucket 0 in hex"]},
        "padding": 0,
        "placements": [placement],
    }
    return {name: values[name] for name in model.model_fields}


def error_response(status: int, error: MilesError) -> JSONResponse:
    """Our errors on the wire: ``{"error": {"message", "type", "remedy"}}``."""
    content = {"message": error.message, "type": type(error).__name__, "remedy": error.remedy}
    return JSONResponse({"error": content}, status_code=status)
