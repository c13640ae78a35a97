"""Which policy version generated which tokens."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.anyio


async def rename(served: Any, version: str, **options: Any) -> None:
    status, reply = await served.post("/update_weight_version", {"new_version": version, **options})
    assert (status, reply["success"], reply["new_version"]) == (200, True, version)


async def test_it_is_in_the_information_and_in_replies(served: Any) -> None:
    await rename(served, "17")
    assert await served.weight_version() == "17"
    meta = (await served.generate([3], {"max_new_tokens": 2}))["meta_info"]
    assert meta["weight_version"] == "17"
    assert [span["version"] for span in meta["weight_versions"]] == ["17"]


async def test_spans_of_a_request_tile_its_output_in_order(served: Any) -> None:
    async with served.in_flight() as flight:
        await served.post("/pause_generation", {"mode": "in_place"})
        # what no token was generated with leaves no span
        for version in ("5", "6", "7"):
            await rename(served, version, abort_all_requests=False)
        await served.post("/continue_generation", {})
    meta = flight.reply["meta_info"]
    first, second = meta["weight_versions"]
    assert (first["version"], first["start"]) == ("0", 0)
    assert (second["version"], second["start"], second["end"]) == ("7", first["end"], served.long)
    assert meta["weight_version"] == "7"
    assert meta["finish_reason"]["type"] == "length"


async def test_an_update_aborts_requests_by_default(served: Any) -> None:
    async with served.in_flight() as flight:
        await rename(served, "9")
    meta = flight.reply["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    # one more token may come from what is called the new version already
    assert meta["weight_versions"][0]["version"] == "0"
    assert meta["weight_versions"][-1]["end"] == len(flight.reply["output_ids"])
    assert meta["weight_version"] == meta["weight_versions"][-1]["version"]


async def test_a_request_that_waited_has_the_version_that_it_ran_with(served: Any) -> None:
    async with served.in_flight() as flight:
        await served.post("/pause_generation", {"mode": "retract"})
        await rename(served, "3", abort_all_requests=False)
        await served.post("/continue_generation", {})
    spans = flight.reply["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["0", "3"]
    assert spans[0]["end"] == spans[1]["start"] >= 3


@pytest.mark.parametrize("body", [None, {}, {"new_version": 7}, {"new_version": None}])
async def test_a_version_is_a_string(served: Any, body: Any) -> None:
    assert (await served.post("/update_weight_version", body))[0] == 400
    assert await served.weight_version() == "0"
