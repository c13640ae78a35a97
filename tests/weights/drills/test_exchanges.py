"""Every exchange of an update may be refused, never arrive, or lose its reply: no engine ever serves torn weights."""

from __future__ import annotations

import itertools

import anyio
import pytest

from miles_core.errors import WeightSyncError

from .proxy import Proxy

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

STAGES = [
    "/weights/layout",
    "/pause_generation",
    "/weights/begin",
    "/weights/receive",
    "/weights/verify",
    "/weights/commit",
    "/continue_generation",
]
FAULTS = ["refused", "never arrives", "reply lost"]


async def test_one_engine_that_misses_any_exchange_is_left_behind_and_whole_again_after_the_next_update(
    rig, traffic, serving
) -> None:
    healthy, faulty = rig.engines
    proxy = Proxy(faulty.url, rig.http)
    async with serving(proxy) as server, anyio.create_task_group() as tasks:
        rig.urls[faulty.name] = server.url
        for engine in rig.engines:
            tasks.start_soon(traffic.flow, engine)
        version = 0
        for stage, fault in itertools.product(STAGES, FAULTS):
            version += 1
            proxy.faults[stage] = fault
            result = await rig.publish(version, patience=0.5)
            assert result.lost.keys() == {server.url}, (stage, fault)
            await served(traffic, healthy, version)
            proxy.faults.clear()
            result = await rig.publish(version, [faulty])
            assert result.lost == {}, (stage, fault)
            await served(traffic, faulty, version)
        tasks.cancel_scope.cancel()
        server.stop.set()
    assert traffic.check(rig.committed, rig.models) == set(range(version + 1))


@pytest.mark.parametrize("stage", ["/weights/begin", "/weights/receive", "/weights/verify", "/weights/commit"])
async def test_an_update_that_the_only_engine_refuses_is_an_error_and_no_version(
    rig, traffic, serving, stage: str
) -> None:
    engine = rig.engines[0]
    proxy = Proxy(engine.url, rig.http)
    async with serving(proxy) as server:
        rig.urls[engine.name] = server.url
        proxy.faults[stage] = "refused"
        with pytest.raises(WeightSyncError, match="the drill says no"):
            await rig.publish(1, [engine])
        torn = stage in ("/weights/verify", "/weights/commit")
        reply = await traffic.ask(engine)
        assert (reply is None) == torn, "an engine that no byte reached goes on with its old weights, no other one"
        proxy.faults.clear()
        await rig.publish(2, [engine])
        assert (await traffic.ask(engine)).versions == [2]
        server.stop.set()
    assert 1 not in traffic.check(rig.committed, rig.models)


async def served(traffic, engine, version: int) -> None:
    """Wait until an engine answers by a version alone."""
    with anyio.fail_after(30):
        while not any(reply.engine == engine.name and reply.versions == [version] for reply in traffic.replies[-40:]):
            await anyio.sleep(0.005)
