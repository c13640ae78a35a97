"""By which transport an update goes, and why."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from miles_core.errors import WeightSyncError
from miles_core.types import Layout, Parameter, ParameterTable, Placement, TensorSpec
from miles_core.weights.auto_choice import AutoChoice
from miles_core.weights.choice import NamedChoice, TransportWay
from miles_core.weights.engine_facts import EngineFacts
from miles_core.weights.exchange import EngineExchange, RefusedError
from miles_core.weights.receiver_updates import ReceiverUpdates
from miles_core.weights.sglang_distributed_updates import SglangDistributedUpdates
from miles_core.weights.sglang_updates import SglangUpdates
from miles_core.weights.transport_facts import TransportFacts

pytestmark = pytest.mark.anyio
TABLE = ParameterTable((Parameter("w", "float32", (4,)),))
SPEC = TensorSpec("w", "float32", (1_000_000,))
SOURCE = Layout((Placement(SPEC, SPEC.whole, "w", 0),))
MEMORY = TransportFacts("memory", reach="host")
DISK = TransportFacts("disk", sglang_update="disk", reach="folder")
DISTRIBUTED = TransportFacts("distributed", receivers=False, sglang_update="distributed")
MOONCAKE = TransportFacts("mooncake")
ALL = dict.fromkeys(("memory", "disk", "mooncake"))
OURS = EngineFacts("http://ours", (TABLE,), same_host=True, transports=ALL)
STOCK = EngineFacts("http://stock", None, same_host=True)
FAR = replace(OURS, url="http://far", same_host=False)


def way_of(facts, kind="miles"):
    return TransportWay(facts, kind, "in_place", lambda table, source: source, frozenset({"torch"}))


@pytest.fixture
def engines_are(monkeypatch):
    """Sets what engines say of themselves."""

    def set_facts(*facts):
        async def all_facts(engines):
            return list(facts)

        for module in ("choice", "auto_choice"):
            monkeypatch.setattr(f"miles_core.weights.{module}.all_facts", all_facts)

    return set_facts


@pytest.mark.parametrize(
    ("transport", "kind", "engines", "expected"),
    [
        (MEMORY, "miles", [OURS], ReceiverUpdates),
        (DISK, "sglang", [STOCK], SglangUpdates),
        (DISK, "sglang", [OURS], ReceiverUpdates),
        (DISK, "sglang", [OURS, STOCK], SglangUpdates),
        (DISK, "sglang", [replace(OURS, transports={"disk": "no room"})], SglangUpdates),
        (DISK, "sglang", [replace(OURS, ranks=(replace(TABLE, naming="vllm"),))], SglangUpdates),
        (DISTRIBUTED, "sglang", [OURS], SglangDistributedUpdates),
    ],
)
async def test_our_receivers_are_preferred_where_all_engines_have_one(engines_are, transport, kind, engines, expected):
    engines_are(*engines)
    choice = NamedChoice(way_of(transport, kind))
    chosen = await choice.choose(None, SOURCE)
    assert type(chosen) is expected
    assert chosen.transport == transport.name
    assert await choice.choose(None, SOURCE) is chosen, "what it knows of engines is kept"


@pytest.mark.parametrize(
    ("transport", "kind", "engine", "reason"),
    [
        (MEMORY, "sglang", STOCK, "engine http://stock has no receiver of ours"),
        (DISK, "miles", STOCK, "engine http://stock has no receiver of ours"),
        (MEMORY, "miles", replace(OURS, transports={"memory": "no /dev/shm"}), "no /dev/shm"),
        (MEMORY, "miles", replace(OURS, transports={}), "engine http://ours has no transport memory"),
        (MEMORY, "miles", replace(OURS, ranks=(replace(TABLE, naming="vllm"),)), r"how engine http://ours .*\(vllm\)"),
        (replace(MEMORY, unavailable="no libibverbs"), "miles", OURS, "no libibverbs"),
        (DISTRIBUTED, "miles", OURS, "engines have no receiver of ours for it"),
    ],
)
async def test_a_named_transport_that_engines_cannot_take_is_refused_with_the_reason(
    engines_are, transport, kind, engine, reason
):
    engines_are(engine)
    with pytest.raises(WeightSyncError, match=f"cannot be updated by the transport {transport.name}: .*{reason}"):
        await NamedChoice(way_of(transport, kind)).choose(None, SOURCE)


NAMELESS = replace(OURS, url="http://nameless", ranks=(replace(TABLE, naming="vllm"),))
BARE = replace(OURS, url="http://bare", transports={})


@pytest.mark.parametrize("odd", [STOCK, NAMELESS, BARE])
@pytest.mark.parametrize(
    "choice", [NamedChoice(way_of(MEMORY)), AutoChoice([way_of(MOONCAKE), way_of(MEMORY)], has_folder=False)]
)
async def test_engines_that_cannot_take_what_the_others_can_are_left_behind(engines_are, choice, odd):
    engines_are(*[OURS, odd, FAR][: 3 if isinstance(choice, AutoChoice) else 2])
    exchange = EngineExchange([OURS.url, odd.url, FAR.url], None, timeout=1.0)
    assert isinstance(await choice.choose(exchange, SOURCE), ReceiverUpdates)
    assert list(exchange.lost) == [odd.url]
    assert isinstance(exchange.lost[odd.url], RefusedError)
    assert exchange.lost[odd.url].message.startswith(f"engine {odd.url} cannot be updated as others are: ")


async def test_each_of_those_that_may_be_fast_is_tried_twice_and_then_the_fastest_is_used(engines_are, caplog):
    engines_are(OURS)
    auto = AutoChoice([way_of(DISK), way_of(MEMORY), way_of(MOONCAKE)], has_folder=False)
    seconds = {"memory": 3.0, "disk": 1.0, "mooncake": 2.0}
    gone = []
    with caplog.at_level(logging.INFO, "miles.weights"):
        for _ in range(8):
            name = (await auto.choose(None, SOURCE)).transport
            gone.append(name)
            auto.measured(name, 4_000_000, seconds[name])
    assert gone == ["memory", "memory", "disk", "disk", "mooncake", "mooncake", "disk", "disk"]
    said = [record.getMessage() for record in caplog.records]
    assert said[-1] == "weights go by disk: 1 engines, all on this host; the fastest, 0.004 GB/s"
    assert len(said) == 4, "said when it changes"


async def test_those_expected_to_be_much_slower_are_not_tried(engines_are):
    engines_are(OURS)
    auto = AutoChoice([way_of(MEMORY), way_of(MOONCAKE)], has_folder=False, trial=2.0)
    for _ in range(4):
        assert (await auto.choose(None, SOURCE)).transport == "memory"
        auto.measured("memory", 1, 1.0)


@pytest.mark.parametrize(("has_folder", "expected"), [(False, "mooncake"), (True, "disk")])
async def test_engines_on_other_hosts_get_what_reaches_them(engines_are, has_folder, expected):
    engines_are(OURS, FAR)
    auto = AutoChoice([way_of(MEMORY), way_of(DISK), way_of(MOONCAKE)], has_folder=has_folder)
    assert (await auto.choose(None, SOURCE)).transport == expected


async def test_where_none_can_every_reason_is_said(engines_are):
    engines_are(FAR)
    auto = AutoChoice([way_of(MEMORY), way_of(DISK), way_of(replace(MOONCAKE, unavailable="absent"))], has_folder=False)
    with pytest.raises(
        WeightSyncError, match="memory: engine http://far is on another host; disk: .*; mooncake: absent"
    ):
        await auto.choose(None, SOURCE)


async def test_other_engines_are_measured_anew(engines_are):
    engines_are(OURS)
    auto = AutoChoice([way_of(MEMORY), way_of(DISK)], has_folder=True)
    for _ in range(2):
        await auto.choose(None, SOURCE)
        auto.measured("memory", 1, 1.0)
    assert (await auto.choose(None, SOURCE)).transport == "disk"
    engines_are(replace(OURS, url="http://other"))
    assert (await auto.choose(None, SOURCE)).transport == "memory"


async def test_what_failed_is_not_tried_again_for_these_engines_as_long_as_there_is_another(engines_are):
    engines_are(OURS)
    auto = AutoChoice([way_of(MEMORY), way_of(DISK)], has_folder=True)
    assert (await auto.choose(None, SOURCE)).transport == "memory"
    assert auto.failed("memory", "no space left")
    assert (await auto.choose(None, SOURCE)).transport == "disk"
    assert not auto.failed("disk", "gone"), "there is no other"
    with pytest.raises(WeightSyncError, match="memory: it failed: no space left; disk: it failed: gone"):
        await auto.choose(None, SOURCE)
    engines_are(replace(OURS, url="http://other"))
    assert (await auto.choose(None, SOURCE)).transport == "memory"


async def test_rates_are_kept_while_other_engines_catch_up(engines_are):
    auto = AutoChoice([way_of(MEMORY), way_of(DISK)], has_folder=True)
    other = replace(OURS, url="http://other")
    for facts in ((OURS, other), (other,), (OURS, other)):
        engines_are(*facts)
        assert (await auto.choose(None, SOURCE)).transport == "memory"
        auto.measured("memory", 1, 1.0)
    engines_are(OURS, other)
    assert (await auto.choose(None, SOURCE)).transport == "disk", "memory was tried twice with both"
