"""What engines say over HTTP decides which way an update goes."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from miles_core.errors import WeightSyncError
from miles_core.lib.layout import parameter_table
from miles_core.weights.auto_choice import AutoChoice
from miles_core.weights.choice import TransportWay
from miles_core.weights.exchange import EngineExchange, NoEngineError
from miles_core.weights.host import host_id
from miles_core.weights.receiver_updates import ReceiverUpdates
from miles_core.weights.sglang_updates import SglangUpdates
from miles_core.weights.transport_facts import TransportFacts

pytestmark = pytest.mark.anyio
OURS = {
    "memory": TransportFacts("memory", reach="host"),
    "disk": TransportFacts("disk", sglang_update="disk", reach="folder"),
    "mooncake": TransportFacts("mooncake"),
    "tensor": TransportFacts("tensor", receivers=False, sglang_update="tensor", reach="host"),
}
USABLE = {"memory": None, "disk": None, "mooncake": None}


class Engine:
    """Answers ``/weights/layout`` only; ``status`` says how, 404 is an engine without a receiver."""

    def __init__(self, ranks, *, host=None, transports=USABLE, status=200):
        self.ranks, self.status, self.transports = ranks, status, dict(transports)
        self.host = host_id() if host is None else host

    @property
    def app(self):
        async def layout(_):
            if self.status != 200:
                return Response("no", self.status)
            facts = {"version": 0, "torn": False, "host": self.host, "transports": self.transports}
            return JSONResponse({"ranks": self.ranks, **facts})

        return Starlette(routes=[Route("/weights/layout", layout)])


@pytest.fixture
def source(tiny, layout_of):
    return layout_of(tiny())


@pytest.fixture
def ranks(tiny):
    return [parameter_table(tiny().state_dict()).to_json()]


def way(name, kind="miles", facts=None):
    return TransportWay(facts or OURS[name], kind, "in_place", lambda table, source: source, frozenset({"torch"}))


def auto(*names, kind="miles", extra=()):
    return AutoChoice([*(way(name, kind) for name in names), *extra], has_folder=False)


@pytest.fixture
async def ask(serve, http, source):
    """``await ask(choice, engine, ...)``: the way that is chosen for these engines, each at one address."""
    urls = {}
    async with AsyncExitStack() as stack:

        async def asking(choice, *engines):
            for engine in engines:
                if engine not in urls:
                    urls[engine] = await stack.enter_async_context(serve(engine.app))
            return await choice.choose(EngineExchange([urls[one] for one in engines], http, timeout=10.0), source)

        yield asking


@pytest.mark.parametrize(
    ("engine", "chosen", "reason"),
    [
        ({"transports": {"disk": None, "mooncake": None}}, "disk", "has no transport memory"),
        ({"transports": {**USABLE, "memory": "/dev/shm is not mounted"}}, "disk", "/dev/shm is not mounted"),
        ({"host": "another"}, "mooncake", "is on another host"),
    ],
)
async def test_what_one_engine_lacks_is_ruled_out_for_all(ask, ranks, caplog, engine, chosen, reason):
    caplog.set_level(logging.INFO, "miles.weights")
    choice = auto("memory", "disk", "mooncake")
    assert (await ask(choice, Engine(ranks), Engine(ranks, **engine))).transport == chosen
    assert reason in caplog.messages[-1].partition("not memory: ")[2].partition(";")[0]


async def test_what_this_process_cannot_use_is_ruled_out_with_the_reason(ask, ranks, caplog):
    caplog.set_level(logging.INFO, "miles.weights")
    broken = way("mooncake", facts=TransportFacts("mooncake", unavailable="its library is not installed"))
    assert (await ask(auto("disk", extra=[broken]), Engine(ranks))).transport == "disk"
    assert "not mooncake: its library is not installed" in caplog.text


async def test_the_best_of_both_tries_counts_since_the_first_sets_up(ask, ranks):
    choice, engine = auto("memory", "disk", "mooncake"), Engine(ranks)
    seconds = {"memory": [9.0, 3.0], "disk": [2.0, 4.0], "mooncake": [9.0, 2.5]}
    tried = []
    for _ in range(6):
        name = (await ask(choice, engine)).transport
        tried.append(name)
        choice.measured(name, 1000, seconds[name][tried.count(name) - 1])
    assert tried == ["memory", "memory", "disk", "disk", "mooncake", "mooncake"]
    for _ in range(3):
        assert (await ask(choice, engine)).transport == "disk"
        choice.measured("disk", 1000, 9.0)


async def test_the_same_engines_in_another_order_are_not_measured_anew_and_fewer_are(ask, ranks):
    choice, one, other = auto("memory", "disk"), Engine(ranks), Engine(ranks)
    for seconds in (2.0, 2.0, 1.0, 1.0):
        choice.measured((await ask(choice, one, other)).transport, 1000, seconds)
    assert (await ask(choice, other, one)).transport == "disk"
    assert (await ask(choice, one)).transport == "memory"


async def test_the_choice_is_said_when_it_changes_and_only_then(ask, ranks, caplog):
    caplog.set_level(logging.INFO, "miles.weights")
    choice, engine = auto("memory", "tensor"), Engine(ranks)
    for _ in range(2):
        choice.measured((await ask(choice, engine)).transport, 1000, 0.001)
    for _ in range(2):
        await ask(choice, engine)
    first, settled = caplog.messages
    ruled_out = "not tensor: engines have no receiver of ours for it"
    assert first == f"weights go by memory: 1 engines, all on this host; to be measured; {ruled_out}"
    assert "; the fastest, " in settled
    assert settled.endswith(ruled_out)


async def test_one_stock_engine_among_ours_has_all_take_their_own_endpoints(ask, ranks):
    choice = auto("disk", "memory", kind="sglang")
    assert isinstance(await ask(choice, Engine(ranks), Engine([], status=404)), SglangUpdates)
    assert isinstance(await ask(choice, Engine(ranks)), ReceiverUpdates)


async def test_parameters_that_the_bridge_cannot_name_go_by_own_endpoints_or_are_refused(ask, tiny):
    foreign = Engine([parameter_table(tiny().state_dict(), naming="other").to_json()])
    assert isinstance(await ask(auto("disk", kind="sglang"), foreign), SglangUpdates)
    with pytest.raises(WeightSyncError, match=r"does not know how engine .* names its parameters \(other\)"):
        await ask(auto("disk", "memory"), foreign)


async def test_an_engine_that_cannot_be_asked_is_left_behind_and_the_others_choose(serve, http, source, ranks):
    async with serve(Engine(ranks).app) as well, serve(Engine(ranks, status=500).app) as ill:
        engines = EngineExchange((ill, well), http, timeout=10.0)
        assert (await auto("memory").choose(engines, source)).transport == "memory"
        assert list(engines.lost) == [ill]
        with pytest.raises(NoEngineError):
            await auto("memory").choose(EngineExchange((ill,), http, timeout=10.0), source)


class Pigeon:
    """A third party's transport: says nothing of itself but its name."""


async def test_a_third_partys_transport_that_says_nothing_is_one_for_receivers(ask, ranks):
    facts = TransportFacts.of("pigeon", Pigeon)
    assert facts == TransportFacts("pigeon", receivers=True, sglang_update=None, reach="network", unavailable=None)
    engine = Engine(ranks, transports={"pigeon": None}, host="another")
    assert (await ask(auto("memory", extra=[way("pigeon", facts=facts)]), engine)).transport == "pigeon"


@pytest.mark.parametrize(
    ("attributes", "kind", "fits"),
    [
        ({}, "miles", True),
        ({"receivers": False, "sglang_update": "tensor"}, "sglang", True),
        ({"receivers": False, "sglang_update": "tensor"}, "miles", False),
        ({"receivers": False}, "sglang", False),
    ],
)
def test_a_transport_fits_an_engine_by_receiver_or_endpoint(attributes, kind, fits):
    assert TransportFacts.of("some", type("Some", (), attributes)).fits(kind) is fits


def test_unavailable_is_asked_of_the_class():
    some = type("Some", (), {"unavailable": staticmethod(lambda: "no device")})
    assert TransportFacts.of("some", some).unavailable == "no device"
