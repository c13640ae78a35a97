"""The three ways to pause, with a request in flight and one that comes meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def paused(served: Any, mode: str | None, **options: Any) -> AsyncIterator[Any]:
    """Pauses with a request in flight, which it yields, and sends another one; continues at the end."""
    waiting: list[Any] = []

    async def ask() -> None:
        waiting.append(await served.generate([7, 8], {"max_new_tokens": 4, "ignore_eos": True}))

    async with anyio.create_task_group() as tasks, served.in_flight(**options) as flight:
        status, reply = await served.post("/pause_generation", {} if mode is None else {"mode": mode})
        assert (status, reply["status"]) == (200, "ok")
        tasks.start_soon(ask)
        yield flight
        assert waiting == []
        assert (await served.post("/continue_generation", {}))[0] == 200
    assert waiting[0]["meta_info"]["finish_reason"] == {"type": "length", "length": 4}


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_a_request_in_flight_goes_on_where_it_was(served: Any, mode: str) -> None:
    routed = served.model == "moe"
    async with paused(served, mode, return_routed_experts=routed) as flight:
        pass
    reply = flight.reply
    meta = reply["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": served.long}
    assert meta["num_retractions"] == (mode == "retract")
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": served.long}]
    found = [entry[0] for entry in meta["output_token_logprobs"]]
    assert found == pytest.approx(served.reference.logprobs([3, 4, 5], reply["output_ids"]), abs=1e-3)
    if routed:
        rows, expected = served.rows(reply), served.reference.routes([3, 4, 5, *reply["output_ids"]])[:-1]
        assert (rows == expected).mean() > 0.999


@pytest.mark.parametrize("mode", ["abort", None])
async def test_abort_is_the_default_and_answers_with_what_there_is(served: Any, mode: str | None) -> None:
    async with paused(served, mode) as flight:
        pass
    assert flight.reply["meta_info"]["finish_reason"]["type"] == "abort"
    assert 3 <= len(flight.reply["output_ids"]) < served.long


@pytest.mark.parametrize(("mode", "status"), [("in_place", 400), ("retract", 200), ("abort", 200)])
async def test_the_cache_can_be_flushed_unless_requests_keep_theirs(served: Any, mode: str, status: int) -> None:
    async with paused(served, mode):
        assert (await served.post("/flush_cache"))[0] == status


async def test_what_runs_can_be_aborted_while_paused_in_place(served: Any) -> None:
    """Its reply comes with the next step at the latest: SGLang needs one to end it."""
    async with paused(served, "in_place") as flight:
        assert (await served.post("/abort_request", {"rid": flight.rid}))[0] == 200
    assert flight.reply["meta_info"]["finish_reason"]["message"] == "Aborted"
    assert 3 <= len(flight.reply["output_ids"]) < served.long


async def test_what_was_retracted_and_is_aborted_answers_as_if_it_had_waited(served: Any) -> None:
    async with paused(served, "retract", return_routed_experts=served.model == "moe") as flight:
        assert (await served.post("/abort_request", {"rid": flight.rid}))[0] == 200
    meta = flight.reply["meta_info"]
    assert meta["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert not {"prompt_tokens", "routed_experts"} & set(meta)


async def test_pausing_and_continuing_twice_is_no_error(served: Any) -> None:
    for _ in range(2):
        assert (await served.post("/pause_generation", {"mode": "in_place"}))[0] == 200
    for _ in range(2):
        assert (await served.post("/continue_generation", {}))[0] == 200
    assert (await served.generate([3], {"max_new_tokens": 1}))["output_ids"]


@pytest.mark.parametrize("body", [{"mode": "later"}, {"mode": None}, None])
async def test_an_unknown_mode_or_no_body_is_refused(served: Any, body: Any) -> None:
    assert (await served.post("/pause_generation", body))[0] == 400
    assert (await served.generate([3], {"max_new_tokens": 1}))["output_ids"]


async def test_continue_needs_a_body(served: Any) -> None:
    assert (await served.post("/continue_generation"))[0] == 400
