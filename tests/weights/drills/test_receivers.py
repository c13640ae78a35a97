"""Engines that are stopped, killed or fed wrong bytes in the middle of an update, while the other one goes on."""

from __future__ import annotations

import signal

import anyio
import pytest

from miles_core.errors import WeightSyncError

from .engines import ready

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


async def test_a_receiver_that_is_stopped_in_a_transfer_is_left_behind_and_joins_again(rig, traffic) -> None:
    healthy, stuck = rig.engines
    stuck.file("receive-1.hold").touch()

    async def stop() -> None:
        await stuck.reached("receive-1")
        stuck.signal(signal.SIGSTOP)
        stuck.file("receive-1.hold").unlink()

    result = await rig.while_publishing(1, stop)
    assert list(result.lost) == [stuck.url]
    assert (await traffic.ask(healthy)).versions == [1]
    stuck.signal(signal.SIGCONT)
    await ready([stuck], rig.http)
    assert await traffic.ask(stuck) is None, "half an update lies in it"
    assert (await rig.publish(1, [stuck])).lost == {}
    assert (await traffic.ask(stuck)).versions == [1]
    assert (await rig.publish(2)).lost == {}
    assert traffic.check(rig.committed, rig.models) == {1}


async def test_a_stopped_engine_costs_an_update_its_patience_once(rig) -> None:
    _, stuck = rig.engines
    stuck.signal(signal.SIGSTOP)
    started = anyio.current_time()
    result = await rig.publish(1, timeout=60.0, patience=1.5)
    took = anyio.current_time() - started
    stuck.signal(signal.SIGCONT)
    assert list(result.lost) == [stuck.url]
    assert 1.5 <= took < 10, "one patience, and neither one for each stage nor a time-out"


async def test_a_receiver_that_is_killed_in_a_transfer_costs_the_others_nothing(rig, traffic) -> None:
    healthy, killed = rig.engines
    killed.file("receive-2.hold").touch()

    async def kill() -> None:
        await killed.reached("receive-2")
        killed.signal(signal.SIGKILL)

    result = await rig.while_publishing(1, kill)
    assert list(result.lost) == [killed.url]
    assert (await traffic.ask(healthy)).versions == [1]
    assert traffic.check(rig.committed, rig.models) == {1}


async def test_an_update_whose_only_engine_is_killed_is_committed_to_no_one(rig) -> None:
    killed = rig.engines[0]
    killed.file("receive-0.hold").touch()

    async def kill() -> None:
        await killed.reached("receive-0")
        killed.signal(signal.SIGKILL)

    result = await rig.while_publishing(1, kill, engines=[killed])
    assert (result.manifest.version, result.manifest.nbytes) == (1, 0)
    assert list(result.lost) == [killed.url]


@pytest.mark.parametrize("fault", ["receive-1.fail", "spoil-1"])
async def test_bytes_that_do_not_come_or_come_wrong_keep_only_that_engine_out(rig, traffic, fault: str) -> None:
    healthy, faulty = rig.engines
    faulty.file(fault).touch()
    result = await rig.publish(1)
    assert list(result.lost) == [faulty.url]
    assert (await traffic.ask(healthy)).versions == [1]
    assert await traffic.ask(faulty) is None
    faulty.file(fault).unlink()
    await rig.publish(2)
    assert (await traffic.ask(faulty)).versions == [2]
    assert traffic.check(rig.committed, rig.models) == {1, 2}


async def test_a_trainer_that_fails_in_the_middle_leaves_both_engines_out_of_service_until_the_next_update(
    rig, traffic, drill_folder
) -> None:
    (drill_folder / "trainer.send-2.fail").touch()
    with pytest.raises(WeightSyncError, match="trainer: staging bucket 2 failed: the drill fails at send-2"):
        await rig.publish(1)
    assert [await traffic.ask(engine) for engine in rig.engines] == [None, None]
    (drill_folder / "trainer.send-2.fail").unlink()
    await rig.publish(2)
    for engine in rig.engines:
        assert (await traffic.ask(engine)).versions == [2]
    assert traffic.check(rig.committed, rig.models) == {2}
