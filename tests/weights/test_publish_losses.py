"""Updates in which engines or the trainer fail: who serves what afterwards."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import torch

from miles_core.errors import TrainError, WeightSyncError
from miles_core.weights.receive import ReceiverStatus

from .publishing import IDS, reference

pytestmark = pytest.mark.anyio


async def test_refusal_before_the_first_byte_restores_every_engine(fleet, trainer, tiny):
    (stale, ahead), publisher = await fleet(tiny(seed=2), tiny(seed=3))
    await publisher.publish(5)
    before = stale.logits(IDS)
    with pytest.raises(WeightSyncError, match=r"2 of 2 engines failed: .*versions only grow"):
        await publisher.publish(4)
    ahead.refuse["/weights/begin"] = "no"
    stale.refuse["/weights/begin"] = "no"
    with pytest.raises(WeightSyncError, match=r"begin of version 6 was refused with status 500: no"):
        await publisher.publish(6)
    assert torch.equal(stale.logits(IDS), before)
    assert (stale.paused, stale.out_of_service, stale.version) == (None, None, 5)
    assert (ahead.paused, ahead.out_of_service, ahead.version) == (None, None, 5)


async def test_engines_that_all_fail_to_commit_stay_paused_until_an_update_does(fleet, tiny):
    engines, publisher = await fleet(tiny(seed=2), tiny(seed=3))
    for engine in engines:
        engine.refuse["/weights/commit"] = "disk on fire"
    with pytest.raises(WeightSyncError, match="2 of 2 engines failed: .*commit was refused with status 500: disk on"):
        await publisher.publish(1)
    for engine in engines:
        assert engine.receiver.status == ReceiverStatus(-1, torn=True)
        assert engine.paused == "in_place"
        engine.refuse.clear()

    await publisher.publish(2)
    assert {engine.version for engine in engines} == {2}
    assert {engine.paused for engine in engines} == {None}


STAGES = {
    "/weights/layout": "asking for the layout",
    "/pause_generation": "pause",
    "/weights/begin": "begin of version 1",
    "/weights/receive": "receive of bucket 0",
    "/weights/verify": "verify",
    "/weights/commit": "commit",
    "/continue_generation": "resuming with version 1",
}


@pytest.mark.parametrize("how", ["refuses", "hangs"])
@pytest.mark.parametrize("path", STAGES)
async def test_an_engine_that_fails_at_any_stage_is_left_behind_and_the_other_serves(
    fleet, trained, tiny, memory, tmp_path, path, how
):
    (good, bad), publisher = await fleet(tiny(seed=2), tiny(seed=3), patience=0.2)
    before = bad.logits(IDS)
    if how == "refuses":
        bad.refuse[path] = "on fire"
    else:
        bad.hang.add(path)

    result = await publisher.publish(1)

    assert torch.equal(good.logits(IDS), reference(trained, "float32", tmp_path))
    assert (good.version, good.out_of_service, good.paused) == (1, None, None)
    ((url, error),) = result.lost.items()
    assert url == publisher._fleet.urls[1]
    cause = "was refused with status 500: on fire" if how == "refuses" else "took 0.2 s longer than with another engine"
    assert error.message == f"engine {url}: {STAGES[path]} {cause}"
    if path in ("/weights/layout", "/pause_generation"):
        assert torch.equal(bad.logits(IDS), before), "not told of the update, so it still is what it was"
    else:
        assert bad.paused == "in_place", "what missed an update never resumes"
    assert bad.calls.count(path) <= 2
    assert "/continue_generation" not in bad.calls[:-1]
    assert len(result.manifest.checksums) > 3
    assert not memory._sent

    bad.refuse.clear()
    bad.hang.clear()
    again = await publisher.publish(1, engines=[url])
    assert again.lost == {}
    assert (bad.version, bad.out_of_service, bad.paused) == (1, None, None)
    assert torch.equal(bad.logits(IDS), good.logits(IDS))


async def test_an_engine_with_another_kind_of_layout_reply_is_left_behind(fleet, tiny, monkeypatch):
    (good, bad), publisher = await fleet(tiny(seed=2), tiny(seed=3))
    table = type("Table", (), {"to_json": lambda self: {"parameters": "none"}})()
    monkeypatch.setattr(bad.receiver, "table", table)
    result = await publisher.publish(1)
    assert good.version == 1
    (error,) = result.lost.values()
    assert "/weights/layout answered what this version does not know" in error.message


async def test_an_engine_that_the_weights_do_not_fit_is_left_behind_before_it_is_paused(fleet, tiny):
    (good, odd), publisher = await fleet(tiny(seed=2), tiny(seed=3, num_hidden_layers=1))
    result = await publisher.publish(1)
    assert (good.version, odd.version) == (1, -1)
    (error,) = result.lost.values()
    assert "do not fit engine http://" in error.message
    assert "it claims nothing of what the trainer sends as" in error.message
    assert set(odd.calls) == {"/weights/layout"}


async def test_where_no_engine_can_be_reached_the_version_is_committed_to_no_one(fleet, tiny, trainer, memory):
    engines, publisher = await fleet(tiny(seed=2), tiny(seed=3), timeout=0.5)
    for engine in engines:
        engine.hang.add("/weights/verify")
    result = await publisher.publish(1)
    assert (result.manifest.version, result.manifest.nbytes, list(result.lost)) == (1, 0, publisher._fleet.urls)
    for engine in engines:
        engine.hang.clear()
        assert engine.paused == "in_place"
        assert engine.receiver.status == ReceiverStatus(-1, torn=True)
    await publisher.publish(2)
    assert {engine.version for engine in engines} == {2}
    assert not memory._sent


async def test_a_receiver_that_the_transport_could_not_reach_is_lost_alone(fleet, trainer, tiny, monkeypatch):
    (good, bad), publisher = await fleet(tiny(seed=2), tiny(seed=3))
    stage = trainer.source.stage

    def stage_with_a_failure(bucket):
        delivery, checksums = stage(bucket)
        return ({**delivery, "failed": {"1": "its link is down"}} if bucket.index == 1 else delivery), checksums

    monkeypatch.setattr(trainer.source, "stage", stage_with_a_failure)
    result = await publisher.publish(1)
    assert (good.version, bad.version) == (1, -1)
    assert [error.message for error in result.lost.values()] == [
        f"engine {publisher._fleet.urls[1]}: bucket 1: its link is down"
    ]
    assert bad.calls.count("/weights/receive") == 1


async def test_failing_trainer_is_named_and_engines_without_a_byte_resume(fleet, trainer, tiny):
    (engine,), publisher = await fleet(tiny(seed=2))

    async def fail(bucket, delivery):
        raise TrainError("rank 3 died", remedy="Restart it.")

    trainer.damage = fail
    with pytest.raises(WeightSyncError, match="trainer: staging bucket 0 failed: rank 3 died") as caught:
        await publisher.publish(1)
    assert caught.value.remedy == "Restart it."
    assert (engine.paused, engine.out_of_service) == (None, None)


async def test_an_unreachable_engine_is_lost_by_name(alone, toy_engine):
    sock, url = toy_engine.listening_socket()
    sock.close()
    result = await alone(url, timeout=5.0).publish(1)
    assert result.lost[url].message.startswith(f"engine {url}: asking for the layout failed: ClientConnectorError")


async def test_a_silent_engine_is_given_up_after_the_timeout(alone, toy_engine):
    sock, url = toy_engine.listening_socket()
    with sock:
        result = await alone(url, timeout=0.2).publish(1)
    assert result.lost[url].message.startswith(f"engine {url}: asking for the layout failed: ")
    assert "Timeout" in result.lost[url].message


async def test_cancelled_update_is_aborted_and_frees_its_delivery(fleet, trainer, tiny, memory):
    (engine,), publisher = await fleet(tiny(seed=2))

    async def cancel(bucket, delivery):
        if bucket.index == 2:
            scope.cancel()
            await anyio.lowlevel.checkpoint()

    trainer.damage = cancel
    with anyio.CancelScope() as scope:
        await publisher.publish(1)
    assert scope.cancelled_caught
    assert "/weights/abort" in engine.calls
    assert "/weights/verify" not in engine.calls
    assert engine.out_of_service.startswith("weights are torn")
    assert not memory._sent


async def test_without_a_live_engine_the_version_is_committed_to_no_one(fleet, trainer):
    _, publisher = await fleet()
    result = await publisher.publish(3)
    assert (result.manifest.version, result.manifest.nbytes, trainer.staged) == (3, 0, 0)
