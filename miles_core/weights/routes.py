"""The receiver over HTTP: ``/weights/{layout,begin,receive,verify,commit,abort}``, JSON in and out."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from miles_core.errors import WeightSyncError
from miles_core.types import Bucket
from miles_core.weights.receive import WeightReceiver


class _Abort(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Version(_Abort):
    version: int = Field(ge=0)


class _Receive(_Version):
    bucket: Bucket
    delivery: dict[str, Any]


class _Verify(_Version):
    checksums: list[str]


def routes(receiver: WeightReceiver) -> list[Route]:
    """What an engine mounts; every update call answers ``{"version", "torn"}``.

    A body that is not what the call expects is a 400, a call that does not fit the update's state a 409.
    """

    async def layout(_: Request) -> JSONResponse:
        return JSONResponse(receiver.layout.to_json())

    calls: dict[str, tuple[type[BaseModel], Callable[..., object]]] = {
        "begin": (_Version, receiver.begin),
        "receive": (_Receive, receiver.receive),
        "verify": (_Verify, receiver.verify),
        "commit": (_Version, receiver.commit),
        "abort": (_Abort, receiver.abort),
    }
    posts = [
        Route(f"/weights/{name}", partial(_answer, receiver, model, call), methods=["POST"])
        for name, (model, call) in calls.items()
    ]
    return [Route("/weights/layout", layout, methods=["GET"]), *posts]


async def _answer(
    receiver: WeightReceiver, model: type[BaseModel], call: Callable[..., object], request: Request
) -> JSONResponse:
    try:
        body = model.model_validate_json(await request.body())
    except ValidationError as error:
        return _error(400, WeightSyncError(_expectation(model, error)))
    arguments = {name: getattr(body, name) for name in model.model_fields}
    try:
        await anyio.to_thread.run_sync(partial(call, **arguments))
    except WeightSyncError as error:
        return _error(409, error)
    return JSONResponse(asdict(receiver.status))


def _expectation(model: type[BaseModel], error: ValidationError) -> str:
    found = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}" for e in error.errors())
    return f"expected a JSON body {json.dumps(_example(model))}; {found}"


def _example(model: type[BaseModel]) -> dict[str, object]:
    tensor = {"name": "text", "dtype": "bfloat16", "shape": [2, 3], "nbytes": 12}
    values: dict[str, object] = {
        "version": 1,
        "bucket": {"index": 0, "tensors": [tensor], "nbytes": 12},
        "delivery": {"...": "..."},
        "checksums": ["xxh3-128 of bucket 0 in hex"],
    }
    return {name: values[name] for name in model.model_fields}


def _error(status: int, error: WeightSyncError) -> JSONResponse:
    content = {"message": error.message, "type": "WeightSyncError", "remedy": error.remedy}
    return JSONResponse({"error": content}, status_code=status)
