"""What an engine says of how it can be updated."""

from __future__ import annotations

import json

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from miles_core.types import Parameter, ParameterTable, Shard
from miles_core.weights.engine_facts import ask_facts, read_facts
from miles_core.weights.exchange import EngineExchange, RefusedError
from miles_core.weights.host import host_id

TABLES = tuple(
    ParameterTable((Parameter("w", "bfloat16", (2, 3)),), Shard(tp_rank=rank, tp_size=2), "sglang") for rank in (0, 1)
)


def reply(**more):
    return json.dumps({"ranks": [table.to_json() for table in TABLES], "version": 0, "torn": False, **more})


@pytest.mark.parametrize(
    ("url", "more", "same_host"),
    [
        ("http://gpu-1:80", {"host": host_id()}, True),
        ("http://127.0.0.1:80", {"host": "another boot"}, False),
        ("http://127.0.0.1:80", {"host": ""}, True),
        ("http://localhost:80", {}, True),
        ("http://[::1]:80", {}, True),
        ("http://gpu-1:80", {}, False),
        ("http://10.0.0.1:80", {"host": ""}, False),
    ],
)
def test_an_engine_is_on_this_host_if_it_says_so_or_its_address_does(url, more, same_host):
    facts = read_facts(url, reply(**more))
    assert facts.same_host is same_host
    assert facts.ranks == TABLES


def test_a_transport_can_be_used_if_the_engine_has_it_and_knows_no_reason_against_it():
    facts = read_facts("http://e", reply(transports={"memory": None, "mooncake": "no libibverbs"}))
    assert facts.why_not("memory") is None
    assert facts.why_not("mooncake") == "no libibverbs"
    assert facts.why_not("disk") == "engine http://e has no transport disk"


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"ranks": [{}]}', '{"ranks": 7}', '{"ranks": []}', reply(transports=1)]
)
def test_a_reply_of_another_version_is_a_refusal_that_says_so(text):
    with pytest.raises(RefusedError, match="/weights/layout answered what this version does not know"):
        read_facts("http://e", text)


@pytest.mark.anyio
async def test_an_engine_without_the_endpoint_has_no_receiver_and_one_that_fails_is_not_taken_for_it(serve, http):
    async def fails(request):
        return PlainTextResponse("starting", status_code=503)

    async with serve(Starlette()) as stock, serve(Starlette(routes=[Route("/weights/layout", fails)])) as broken:
        engines = EngineExchange([stock, broken], http, timeout=20.0)
        assert (await ask_facts(engines, stock)).ranks is None
        with pytest.raises(RefusedError, match="asking for the layout was refused with status 503: starting"):
            await ask_facts(engines, broken)
