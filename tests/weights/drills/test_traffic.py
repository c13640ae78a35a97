"""Traffic goes on through updates: every token comes from weights that were committed under the version it names."""

from __future__ import annotations

import anyio
import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


@pytest.mark.parametrize("pause_mode", ["in_place", "retract", "abort"])
async def test_replies_name_exactly_the_weights_that_they_come_from(rig, traffic, pause_mode: str) -> None:
    traffic.recomputed = pause_mode == "retract"
    async with anyio.create_task_group() as tasks:
        for engine in rig.engines:
            for _ in range(2):
                tasks.start_soon(traffic.flow, engine)
        for version in range(1, 6):
            result = await rig.publish(version, pause_mode=pause_mode)
            assert result.lost == {}
            with anyio.fail_after(30):
                while len({reply.engine for reply in traffic.replies if reply.versions == [version]}) < 2:
                    await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert traffic.check(rig.committed, rig.models) == {0, 1, 2, 3, 4, 5}


async def test_the_check_finds_weights_of_another_version(rig, traffic) -> None:
    for engine in rig.engines:
        await traffic.ask(engine)
    with pytest.raises(AssertionError, match="served other weights"):
        traffic.check({0}, lambda version: rig.models(version + 1))
