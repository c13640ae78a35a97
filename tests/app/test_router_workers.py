"""The router's verbs, spoken to a real router."""

from __future__ import annotations

import aiohttp
import pytest

from miles_core.app.router_workers import RouterWorkers
from miles_core.errors import RouterError
from miles_core.router.app import create_app

pytestmark = pytest.mark.anyio
ENGINE = "http://127.0.0.1:1234"


async def workers_of(url: str, http: aiohttp.ClientSession) -> list[str]:
    async with http.get(f"{url}/list_workers") as reply:
        return (await reply.json())["urls"]


async def test_engines_come_and_go(serving) -> None:
    async with serving(create_app()) as router, aiohttp.ClientSession() as http:
        workers = RouterWorkers(router.url, http)
        await workers.add(ENGINE)
        assert await workers_of(router.url, http) == [ENGINE]
        await workers.remove(ENGINE)
        assert await workers_of(router.url, http) == []


async def test_an_engine_that_is_left_behind_goes_with_its_requests(serving) -> None:
    async with serving(create_app()) as router, aiohttp.ClientSession() as http:
        workers = RouterWorkers(router.url, http)
        await workers.add(ENGINE)
        await workers.remove(ENGINE, drop=True)
        assert await workers_of(router.url, http) == []


async def test_a_refusal_says_why(serving) -> None:
    refusal: RouterError | None = None
    async with serving(create_app()) as router, aiohttp.ClientSession() as http:
        try:
            await RouterWorkers(router.url, http).remove(ENGINE)
        except RouterError as error:
            refusal = error
    assert refusal is not None
    assert "no worker 'http://127.0.0.1:1234' is registered" in refusal.message


async def test_a_router_that_is_gone_is_named() -> None:
    async with aiohttp.ClientSession() as http:
        with pytest.raises(RouterError, match="the router does not answer POST http://127.0.0.1:9/workers"):
            await RouterWorkers("http://127.0.0.1:9", http).add(ENGINE)
