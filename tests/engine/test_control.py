"""The control client against a served engine, and against none."""

from __future__ import annotations

from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from miles_core.engine.control import EngineControl
from miles_core.errors import EngineError

pytestmark = pytest.mark.anyio


async def test_controls_reach_the_engine(make_engine: Any, served: Any, moe: Any) -> None:
    engine = make_engine(moe, weight_version="3")
    async with served(engine) as (url, http):
        control = EngineControl(f"{url}/", http)
        await control.health()
        assert (await control.model_info())["weight_version"] == "3"
        await control.pause("retract")
        assert engine.paused
        await control.resume()
        assert not engine.paused
        await control.abort_all()
        await control.flush_cache()


async def test_a_refusal_names_url_status_and_reason(make_engine: Any, served: Any, moe: Any) -> None:
    engine = make_engine(moe)
    async with served(engine) as (url, http):
        engine.set_out_of_service("torn weights")
        with pytest.raises(EngineError, match=f"{url}/health answered 503: .*torn weights"):
            await EngineControl(url, http).health()


async def test_an_engine_that_is_not_there_is_named(serve: Any) -> None:
    async with serve(Starlette()) as url:
        pass
    async with aiohttp.ClientSession() as http:
        with pytest.raises(EngineError, match=f"no answer from {url}/health: ClientConnectorError"):
            await EngineControl(url, http).health()


async def test_an_engine_that_hangs_runs_into_the_time_out(
    make_engine: Any, served: Any, post: Any, gate: Any, moe: Any
) -> None:
    engine = make_engine(moe)
    async with served(engine) as (url, http):
        steps = gate(engine)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, http, f"{url}/generate", {"input_ids": [3]})
            await steps.at_forward()
            with pytest.raises(EngineError, match=r"no answer from .*/pause_generation within 0.1 s"):
                await EngineControl(url, http, timeout=0.1).pause("in_place")
            steps.open()
            with anyio.fail_after(10):
                while not engine.paused:
                    await anyio.lowlevel.checkpoint()
            await EngineControl(url, http).resume()


async def test_model_info_that_is_not_json_is_an_error(serve: Any) -> None:
    async def text(request: Any) -> PlainTextResponse:
        return PlainTextResponse("hello")

    async with serve(Starlette(routes=[Route("/model_info", text)])) as url, aiohttp.ClientSession() as http:
        with pytest.raises(EngineError, match="JSON"):
            await EngineControl(url, http).model_info()
