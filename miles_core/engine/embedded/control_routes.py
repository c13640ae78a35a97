"""SGLang's control endpoints."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, get_args

import anyio
import numpy as np
from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from miles_core.engine.embedded.engine import EmbeddedEngine, MemoryTag, PauseMode
from miles_core.engine.embedded.generate_route import read_json
from miles_core.engine.embedded.request import GenerateSpec
from miles_core.engine.embedded.sampling_params import SamplingOptions
from miles_core.engine.embedded.unavailable import EngineUnavailable
from miles_core.errors import EngineRequestError

if TYPE_CHECKING:
    from starlette.requests import Request

_HEALTH_TIMEOUT = 20.0


async def health(request: Request) -> Response:
    """200 while the engine serves, 503 with the reason while it does not."""
    reason = _engine(request).out_of_service
    if reason is not None:
        raise EngineUnavailable(f"the engine is out of service: {reason}")
    return Response()


async def health_generate(request: Request) -> Response:
    """Like health, but proves it by generating one token."""
    await health(request)
    engine = _engine(request)
    if engine.paused:
        raise EngineUnavailable("generation is paused", remedy="Call /continue_generation first.")
    prompt = np.zeros(1, np.int32)
    spec = GenerateSpec(f"health-{uuid.uuid4().hex}", prompt, SamplingOptions(max_new_tokens=1, temperature=0.0))
    with anyio.move_on_after(_HEALTH_TIMEOUT) as scope:
        await engine.generate([spec])
    if scope.cancelled_caught:
        raise EngineUnavailable(f"one token took longer than {_HEALTH_TIMEOUT:.0f} s")
    return Response()


async def model_info(request: Request) -> Response:
    """What is served, and its policy version."""
    return JSONResponse(_model_info(_engine(request)))


async def server_info(request: Request) -> Response:
    """The settings and the present load."""
    engine = _engine(request)
    routed = {"enable_return_routed_experts": engine.routing is not None}
    return JSONResponse({**asdict(engine.settings), **routed, **_model_info(engine), **engine.load()})


async def abort_request(request: Request) -> Response:
    """Abort ``rid``, or everything with ``abort_all``; without either and for unknown requests nothing happens."""
    body = await _object(request)
    rid, everything = body.get("rid"), body.get("abort_all", False)
    if not isinstance(rid, str | None):
        raise EngineRequestError(f"rid must be a string; got {rid!r}")
    if everything or rid:
        _engine(request).abort(None if everything else rid)
    return Response()


async def update_weight_version(request: Request) -> Response:
    """Say what version the present weights are, after aborting all requests unless ``abort_all_requests`` is false."""
    body = await _object(request)
    version, abort_all = body.get("new_version"), body.get("abort_all_requests", True)
    if not isinstance(version, str) or not isinstance(abort_all, bool):
        raise EngineRequestError(f"send new_version, a string, and abort_all_requests, true or false; got {body!r}")
    await to_thread.run_sync(partial(_engine(request).rename_version, version, abort_all=abort_all))
    return JSONResponse({"success": True, "message": f"Weight version updated to {version}", "new_version": version})


async def foreign_update(request: Request) -> Response:
    """SGLang's ways to send weights, most of them pickled: 404, with what this engine takes instead."""
    raise HTTPException(
        HTTPStatus.NOT_FOUND,
        "The embedded engine unpickles nothing and takes weights at /weights/begin, receive, verify and commit only",
    )


async def pause_generation(request: Request) -> Response:
    """Pause by ``mode`` and answer when no forward pass runs any more."""
    mode = (await _object(request)).get("mode", "abort")
    if mode not in get_args(PauseMode):
        raise EngineRequestError(f"mode must be one of {', '.join(get_args(PauseMode))}; got {mode!r}")
    await to_thread.run_sync(_engine(request).pause, mode)
    return _ok("Generation paused.")


async def continue_generation(request: Request) -> Response:
    """Go on after a pause."""
    await _object(request)
    await to_thread.run_sync(_engine(request).resume)
    return _ok("Generation continued.")


async def flush_cache(request: Request) -> Response:
    """Forget cached prefixes; 400 while requests run, or wait and generation is not paused."""
    if not await to_thread.run_sync(_engine(request).flush_cache):
        raise EngineRequestError(
            "the cache cannot be flushed while requests run or wait",
            remedy="Abort them, wait until they end, or pause with mode retract.",
        )
    return _ok("Cache flushed.")


async def release_memory(request: Request) -> Response:
    """Give the memory of ``tags`` back (default: all); 400 while requests are inside, 409 during a weight update."""
    tags = await _memory_tags(request)

    def release() -> frozenset[MemoryTag]:
        with request.app.state.discarding() if "weights" in tags else nullcontext():
            return _engine(request).release_memory(tags)

    released = await to_thread.run_sync(release)
    return _ok(f"Released: {_names(released)}." if released else f"Nothing to do: {_names(tags)} had been released.")


async def resume_memory(request: Request) -> Response:
    """Take the memory of ``tags`` again (default: all); weights then wait for a whole update."""
    tags = await _memory_tags(request)
    resumed = await to_thread.run_sync(_engine(request).resume_memory, tags)
    return _ok(f"Resumed: {_names(resumed)}." if resumed else f"Nothing to do: {_names(tags)} was not released.")


async def _memory_tags(request: Request) -> frozenset[MemoryTag]:
    tags = (await _object(request)).get("tags")
    known = get_args(MemoryTag)
    if tags is None:
        return frozenset(known)
    if not isinstance(tags, list) or any(tag not in known for tag in tags):
        raise EngineRequestError(f"tags must be a list of {' and '.join(known)}, or left out for all; got {tags!r}")
    return frozenset(tags)


def _names(tags: frozenset[MemoryTag]) -> str:
    return ", ".join(sorted(tags)) or "no tag"


def _engine(request: Request) -> EmbeddedEngine:
    engine: EmbeddedEngine = request.app.state.engine
    return engine


def _model_info(engine: EmbeddedEngine) -> dict[str, Any]:
    return {
        "model_path": engine.settings.model_path,
        "is_generation": True,
        "weight_version": engine.weight_version,
        "context_length": engine.settings.context_length,
        "vocab_size": engine.vocab_size,
    }


async def _object(request: Request) -> dict[str, Any]:
    body = await read_json(request)
    if not isinstance(body, dict):
        raise EngineRequestError(f"the body must be a JSON object; got {body!r}", remedy="Send at least {}.")
    return body


def _ok(message: str) -> Response:
    return JSONResponse({"status": "ok", "success": True, "message": message})
