"""Aborts: what is answered to whoever waits for the request."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

pytestmark = pytest.mark.anyio
RUNNING = 8
SHORT = {"id", "finish_reason", "completion_tokens", "weight_version", "weight_versions"}


async def test_a_running_request_keeps_what_it_has(served: Any) -> None:
    routed = served.model == "moe"
    async with served.in_flight(return_routed_experts=routed) as flight:
        assert await served.post("/abort_request", {"rid": flight.rid}) == (200, "")
    reply = flight.reply
    meta = reply["meta_info"]
    expected = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert meta["finish_reason"] == expected
    tokens = len(reply["output_ids"])
    assert 3 <= tokens < served.long
    assert meta["completion_tokens"] == len(meta["output_token_logprobs"]) == tokens
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": tokens}]
    if routed:
        ids = [3, 4, 5, *reply["output_ids"]]
        assert (served.rows(reply) == served.reference.routes(ids)[:-1]).all()


async def test_an_abort_answers_200_without_a_stream_too(served: Any) -> None:
    replies: list[Any] = []

    async def ask() -> None:
        replies.append(await served.generate([3], {"max_new_tokens": served.long, "ignore_eos": True}, rid="plain"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        async with served.in_flight():
            await served.post("/abort_request", {"abort_all": True})
    assert replies[0]["meta_info"]["finish_reason"]["type"] == "abort"


async def test_a_queued_request_answers_a_short_reply(served: Any) -> None:
    queued: list[Any] = []

    async def ask() -> None:
        queued.append(await served.generate([3], {"max_new_tokens": 5}, rid="queued", return_logprob=True))

    async with anyio.create_task_group() as tasks, anyio.create_task_group() as fillers:
        started = [anyio.Event() for _ in range(RUNNING)]

        async def fill(number: int) -> None:
            async with served.in_flight():
                started[number].set()
                await done.wait()

        done = anyio.Event()
        for number in range(RUNNING):
            fillers.start_soon(fill, number)
        for event in started:
            await event.wait()
        tasks.start_soon(ask)
        while not queued:
            await served.post("/abort_request", {"rid": "queued"})
        await served.post("/abort_request", {"abort_all": True})
        done.set()
    reply = queued[0]
    assert (reply["text"], reply["output_ids"]) == ("", [])
    meta = reply["meta_info"]
    assert meta["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert set(meta) >= SHORT
    assert not {"prompt_tokens", "cached_tokens", "routed_experts"} & set(meta)
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": 0}]
    assert (meta["completion_tokens"], meta["output_token_logprobs"]) == (0, [])


async def test_abort_all_ends_everything(served: Any) -> None:
    async with served.in_flight() as first, served.in_flight() as second:
        await served.post("/abort_request", {"abort_all": True})
    assert [flight.reply["meta_info"]["finish_reason"]["type"] for flight in (first, second)] == ["abort", "abort"]


@pytest.mark.parametrize("body", [{"rid": "nobody"}, {}, {"rid": ""}, {"rid": None}])
async def test_an_abort_of_nothing_is_no_error_and_ends_nothing(served: Any, body: Any) -> None:
    async with served.in_flight() as flight:
        assert await served.post("/abort_request", body) == (200, "")
    assert flight.reply["meta_info"]["finish_reason"]["type"] == "length"


@pytest.mark.parametrize("body", [None, {"rid": 5}])
async def test_an_abort_that_says_nothing_is_refused(served: Any, body: Any) -> None:
    assert (await served.post("/abort_request", body))[0] == 400


async def test_a_client_that_leaves_aborts_its_requests(served: Any) -> None:
    with anyio.move_on_after(0.5):
        await served.generate([[3], [4]], {"max_new_tokens": 2000, "ignore_eos": True}, rid=["gone one", "gone two"])
        pytest.fail("it was not in flight")
    assert await served.rid_comes_free("gone one")
    assert await served.rid_comes_free("gone two")


async def test_a_rid_in_use_is_refused_and_free_again_after_the_reply(served: Any) -> None:
    async with served.in_flight() as flight:
        body = {"rid": flight.rid, "input_ids": [3], "sampling_params": {"max_new_tokens": 1}}
        status, reply = await served.post("/generate", body)
        assert status == 400
        assert flight.rid in str(reply)
        await served.post("/abort_request", {"rid": flight.rid})
    reply = await served.generate([3], {"max_new_tokens": 1}, rid=flight.rid)
    assert reply["meta_info"]["id"] == flight.rid
