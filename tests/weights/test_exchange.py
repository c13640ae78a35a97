"""Calls to several engines: those that fail are left behind, and the others go on."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import anyio
import anyio.lowlevel
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from miles_core.errors import WeightSyncError
from miles_core.weights.exchange import Call, EngineExchange, NoEngineError, RefusedError

pytestmark = pytest.mark.anyio


async def disconnected(request):
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return PlainTextResponse("")


ANSWERS = {
    "yes": lambda request: PlainTextResponse("yes"),
    "no": lambda request: JSONResponse({"error": {"message": "full", "remedy": "Empty it."}}, status_code=409),
    "unsuccessful": lambda request: JSONResponse({"success": False, "message": "half of it"}),
    "success": lambda request: JSONResponse({"success": True, "n": 3}),
    "silent": disconnected,
}


@pytest.fixture
async def exchange_of(serve, http, toy_engine):
    """``await exchange_of("yes", "no", "dead", ...)``: an engine of each kind; they answer to ``/ask``."""
    async with AsyncExitStack() as stack:

        async def make(*kinds, timeout=20.0, patience=None):
            urls = []
            for kind in kinds:
                if kind == "dead":
                    sock, url = toy_engine.listening_socket()
                    sock.close()
                else:
                    app = Starlette(routes=[Route("/ask", ANSWERS.get(kind, kind), methods=["GET", "POST"])])
                    url = await stack.enter_async_context(serve(app))
                urls.append(url)
            return EngineExchange([f"{url}/" for url in urls], http, timeout=timeout, patience=patience), urls

        yield make


async def test_engines_that_fail_are_lost_with_the_reason_and_the_others_answer(exchange_of):
    exchange, (well, refusing, dead) = await exchange_of("yes", "no", "dead")
    assert await exchange.all("/ask", None, stage="greeting") == {well: "yes"}
    assert exchange.urls == (well,)
    assert list(exchange.lost) == [refusing, dead] or list(exchange.lost) == [dead, refusing]
    refusal, death = exchange.lost[refusing], exchange.lost[dead]
    assert refusal.message == f"engine {refusing}: greeting was refused with status 409: full"
    assert (refusal.remedy, refusal.status) == ("Empty it.", 409)
    assert isinstance(refusal, RefusedError)
    assert death.message.startswith(f"engine {dead}: greeting failed: ClientConnectorError")
    assert not isinstance(death, RefusedError)
    assert exchange.well == (well, refusing)


async def test_engines_that_are_lost_are_asked_no_more_and_the_first_reason_stays(exchange_of):
    exchange, (well, other) = await exchange_of("yes", "yes")
    exchange.lose(other, WeightSyncError("first"))
    exchange.lose(other, WeightSyncError("second"))
    assert await exchange.all("/ask", {}, stage="x") == {well: "yes"}
    replies = await exchange.gather([Call(other, "/ask"), Call(well, "/ask")], stage="x")
    assert replies == {1: "yes"}, "an answer of one that is lost is no answer"
    assert exchange.lost[other].message == "first"


async def test_when_the_last_one_is_lost_all_reasons_are_raised(exchange_of):
    exchange, (refusing, dead) = await exchange_of("no", "dead")
    with pytest.raises(NoEngineError, match=r"2 of 2 engines failed: .*(full|Connect).*; .*(full|Connect)") as caught:
        await exchange.all("/ask", None, stage="greeting")
    assert not caught.value.refused, "one of them may come back"
    assert set(caught.value.lost) == {refusing, dead}


async def test_engines_that_are_well_and_all_refuse_are_told_from_those_that_cannot_be_reached(exchange_of):
    exchange, _ = await exchange_of("no", "no")
    with pytest.raises(NoEngineError) as caught:
        await exchange.all("/ask", None, stage="greeting")
    assert caught.value.refused
    assert caught.value.remedy == "Empty it."
    assert not NoEngineError("there is no engine").refused


@pytest.mark.parametrize("kind", ["unsuccessful", "yes"])
async def test_a_reply_that_does_not_say_success_is_a_refusal(exchange_of, kind):
    exchange, (well, other) = await exchange_of("success", kind)
    assert await exchange.accepted("/ask", {}, stage="load") == {well: {"success": True, "n": 3}}
    assert isinstance(exchange.lost[other], RefusedError)
    assert exchange.lost[other].message.startswith(f"engine {other}: load did not succeed: ")


async def test_an_engine_that_is_silent_is_waited_for_no_longer_than_its_patience_after_another_answered(exchange_of):
    exchange, (well, silent) = await exchange_of("yes", "silent", patience=0.1)
    started = time.monotonic()
    assert await exchange.all("/ask", None, stage="greeting") == {well: "yes"}
    assert time.monotonic() - started < 10
    assert exchange.lost[silent].message == f"engine {silent}: greeting took 0.1 s longer than with another engine"
    assert not isinstance(exchange.lost[silent], RefusedError)


@pytest.mark.parametrize("fast", ["dead", "no"])
async def test_patience_does_not_begin_with_a_failure_which_says_nothing_of_how_long_it_takes(exchange_of, fast):
    failed = anyio.Event()

    async def after_patience(request):
        await failed.wait()
        await anyio.sleep(0.2)
        return PlainTextResponse("yes")

    exchange, (slow, other) = await exchange_of(after_patience, fast, patience=0.01)

    async def note():
        while other not in exchange.lost:
            await anyio.lowlevel.checkpoint()
        failed.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(note)
        replies = await exchange.all("/ask", None, stage="load")
    assert replies == {slow: "yes"}


async def test_engines_that_are_all_silent_are_given_up_after_the_timeout(exchange_of):
    exchange, _ = await exchange_of("silent", "silent", timeout=0.2)
    with pytest.raises(NoEngineError, match=r"2 of 2 engines failed: .*greeting failed: .*Timeout"):
        await exchange.all("/ask", None, stage="greeting")


async def test_work_for_each_engine_loses_those_whose_work_fails(exchange_of):
    exchange, (one, other) = await exchange_of("yes", "yes")

    async def work(url):
        if url == other:
            raise WeightSyncError("not here")
        return url.upper()

    assert await exchange.each(work, stage="x") == {one: one.upper()}
    assert exchange.lost[other].message == "not here"


async def test_what_is_no_failure_of_an_engine_is_raised_as_it_is(exchange_of):
    exchange, _ = await exchange_of("yes")

    async def work(url):
        raise KeyError("mistake")

    with pytest.raises(KeyError, match="mistake"):
        await exchange.each(work, stage="x")
    assert exchange.lost == {}
