"""Updates by SGLang's endpoints: order, verification, and what every kind of failure leaves behind."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
import torch
from starlette.responses import JSONResponse

from miles_core.api import PluginContext
from miles_core.errors import WeightSyncError
from miles_core.weights.publish import Publisher
from miles_core.weights.salt import PrefixSalt
from miles_plugins.transports.disk import Disk

pytestmark = pytest.mark.anyio
IDS = [1, 2, 3, 5, 8]
CONTROL = [
    "/pause_generation", "/update_weights_from_disk", "/flush_cache", "/update_weight_version", "/model_info",
    "/continue_generation",
]  # fmt: skip


@pytest.fixture
def disk(tmp_path):
    transport = Disk(Disk.Config(dir=str(tmp_path / "weights")), PluginContext())
    yield transport
    transport.close()


@pytest.fixture
def trained(tiny):
    return tiny(seed=1)


@pytest.fixture
def trainer(trained, disk, source_of, trainer_of):
    return trainer_of(source_of(trained, disk))


@pytest.fixture
async def fleet(serve, toy_sglang, trainer, http, fleet_of, choice_of):
    """``servers, publisher = await fleet(model, ...)``."""
    async with AsyncExitStack() as stack:

        async def start(*models, pause_mode="in_place", salt=None):
            servers = [toy_sglang.ToySglang(model) for model in models]
            urls = [await stack.enter_async_context(serve(server.app)) for server in servers]
            publisher = Publisher(
                fleet_of(urls), trainer, http, bucket_bytes=4000, timeout=20.0, pause_mode=pause_mode,
                choice=choice_of("disk", Disk, kind="sglang", pause_mode=pause_mode), salt=salt,
            )  # fmt: skip
            return servers, publisher

        yield start


def left_in(disk):
    return list(disk._files._base.iterdir())


async def test_the_weights_arrive_and_no_server_names_them_before_all_hold_them(fleet, trained, tiny, disk):
    servers, publisher = await fleet(*(tiny(seed=seed, dtype=torch.bfloat16) for seed in (2, 3)))
    result = await publisher.publish(1)
    for server in servers:
        for name, tensor in server.model.state_dict().items():
            assert torch.equal(tensor, trained.state_dict()[name].bfloat16()), name
        assert [path for path in server.paths if path in CONTROL] == CONTROL
        bodies = dict(server.calls)
        assert bodies["/pause_generation"] == {"mode": "in_place"}
        assert bodies["/update_weights_from_disk"]["flush_cache"] is False
        assert "weight_version" not in bodies["/update_weights_from_disk"]
        assert bodies["/update_weight_version"] == {"new_version": "1", "abort_all_requests": False}
        assert (server.weight_version, server.paused) == ("1", None)
    assert result.manifest.nbytes == sum(p.nbytes for p in tiny().state_dict().values())
    assert left_in(disk) == []


async def test_engines_still_generate_while_the_files_are_written(fleet, tiny, trainer):
    (server,), publisher = await fleet(tiny(seed=2))

    async def running(bucket, delivery):
        assert server.calls == []

    trainer.damage = running
    await publisher.publish(1)
    assert server.weight_version == "1"


async def test_a_refused_flush_is_no_failure_where_requests_stay_in_place(fleet, tiny):
    (server,), publisher = await fleet(tiny(seed=2))
    server.busy = True
    await publisher.publish(1)
    assert (server.weight_version, server.paused) == ("1", None)


async def test_a_refused_flush_is_a_failure_where_no_request_may_be_left(fleet, tiny):
    (server,), publisher = await fleet(tiny(seed=2), pause_mode="retract")
    server.busy = True
    with pytest.raises(WeightSyncError, match="flush of the prefix cache was refused with status 400: Flush cache"):
        await publisher.publish(1)
    assert (server.weight_version, server.paused) == ("default", "retract")


@pytest.mark.parametrize("status", [200, 400])
async def test_an_engine_whose_load_fails_stays_paused_and_unnamed_and_the_other_serves(
    fleet, trained, tiny, disk, status
):
    (good, bad), publisher = await fleet(tiny(seed=2), tiny(seed=3))
    refusal = JSONResponse({"success": False, "message": "Rolling back to original weights."}, status_code=status)
    bad.answers["/update_weights_from_disk"] = refusal
    result = await publisher.publish(1)
    ((url, error),) = result.lost.items()
    assert url == publisher._fleet.urls[1]
    assert error.message.startswith(f"engine {url}: load of version 1 ")
    assert error.message.endswith("Rolling back to original weights.")
    assert (good.weight_version, good.paused) == ("1", None)
    assert torch.equal(good.model.lm_head.weight, trained.lm_head.weight)
    assert (bad.weight_version, bad.paused) == ("default", "in_place")
    assert "/update_weight_version" not in bad.paths
    assert left_in(disk) == []

    bad.answers.clear()
    await publisher.publish(1, engines=[url])
    assert (bad.weight_version, bad.paused) == ("1", None)
    assert torch.equal(good.logits(IDS), bad.logits(IDS))


async def test_where_no_engine_can_load_all_stay_paused_and_nothing_is_left_on_the_disk(fleet, tiny, disk):
    servers, publisher = await fleet(tiny(seed=2), tiny(seed=3))
    for server in servers:
        refusal = JSONResponse({"success": False, "message": "no memory"}, status_code=400)
        server.answers["/update_weights_from_disk"] = refusal
    with pytest.raises(WeightSyncError, match="2 of 2 engines failed: .*load of version 1 was refused .*: no memory"):
        await publisher.publish(1)
    for server in servers:
        assert (server.weight_version, server.paused) == ("default", "in_place")
        server.answers.clear()
    assert left_in(disk) == []
    await publisher.publish(2)
    assert {(server.weight_version, server.paused) for server in servers} == {("2", None)}


@pytest.mark.parametrize(
    ("path", "stage"),
    [
        ("/pause_generation", "pause"),
        ("/flush_cache", "flush of the prefix cache"),
        ("/update_weight_version", "commit"),
        ("/continue_generation", "resuming with version 1"),
    ],
)
async def test_an_engine_that_refuses_at_any_stage_is_left_behind_and_the_other_serves(fleet, tiny, path, stage):
    (good, bad), publisher = await fleet(tiny(seed=2), tiny(seed=3), pause_mode="retract")
    bad.answers[path] = JSONResponse({"message": "busy"}, status_code=400)
    result = await publisher.publish(1)
    assert (good.weight_version, good.paused) == ("1", None)
    (error,) = result.lost.values()
    assert error.message == f"engine {publisher._fleet.urls[1]}: {stage} was refused with status 400: busy"
    assert bad.paused == (None if path == "/pause_generation" else "retract")


async def test_a_torn_engine_does_not_resume_when_a_later_update_fails_before_its_load(fleet, tiny, trainer):
    (server,), publisher = await fleet(tiny(seed=2))
    server.answers["/update_weights_from_disk"] = JSONResponse({"success": False, "message": "no"}, status_code=400)
    with pytest.raises(WeightSyncError):
        await publisher.publish(1)
    server.answers.clear()

    async def cut(bucket, delivery):
        os.truncate(delivery["file"], 100)

    trainer.damage = cut
    with pytest.raises(WeightSyncError, match="must have"):
        await publisher.publish(1)
    assert server.paused == "in_place"


async def test_an_engine_that_dies_in_its_load_is_named(fleet, tiny, disk, monkeypatch):
    (server,), publisher = await fleet(tiny(seed=2))

    async def dies(server, body):
        raise ConnectionError

    server.answers["/update_weights_from_disk"] = dies
    with pytest.raises(WeightSyncError, match=r"engine http\S+: load of version 1 "):
        await publisher.publish(1)
    assert server.paused == "in_place"
    assert left_in(disk) == []


async def test_a_version_that_is_not_taken_is_found_before_the_engine_resumes(fleet, tiny):
    (server,), publisher = await fleet(tiny(seed=2))
    server.answers["/update_weight_version"] = JSONResponse({"success": True, "message": "as if"})
    with pytest.raises(WeightSyncError, match="expected weight_version '1' after the commit; it says 'default'"):
        await publisher.publish(1)
    assert server.paused == "in_place"


def flipped(path):
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "bucket 1 cannot be read: .*No such file"),
        (lambda path: os.truncate(path, 500), r"bucket-00001.safetensors must have \d+ bytes .*; it has 500"),
        (flipped, "bucket-00001.safetensors is not what the trainer wrote: .*: expected xxh3-128"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"F32", b"F16")), "does not begin with the header"),
    ],
    ids=["vanished", "cut", "flipped", "header"],
)
async def test_a_damaged_file_is_found_before_any_engine_reads_it(fleet, tiny, trainer, disk, damage, message):
    (server,), publisher = await fleet(tiny(seed=2))
    before = server.logits(IDS)

    async def second(bucket, delivery):
        if bucket.index == 1:
            damage(Path(delivery["file"]))

    trainer.damage = second
    with pytest.raises(WeightSyncError, match=message) as caught:
        await publisher.publish(1)
    assert caught.value.remedy is None or "[weights] dir" in caught.value.remedy
    assert "/update_weights_from_disk" not in server.paths
    assert torch.equal(server.logits(IDS), before)
    assert (server.weight_version, server.paused) == ("default", None)
    assert left_in(disk) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [(Path.unlink, "vanished while engines read it"), (flipped, "changed while engines read it")],
    ids=["vanished", "flipped"],
)
async def test_a_file_that_changes_during_the_load_fails_the_update(fleet, tiny, damage, message):
    (server,), publisher = await fleet(tiny(seed=2))

    async def load_and_damage(server, body):
        damage(Path(body["model_path"]) / "bucket-00001.safetensors")
        return JSONResponse({"success": True, "message": "as if"})

    server.answers["/update_weights_from_disk"] = load_and_damage
    with pytest.raises(WeightSyncError, match=message):
        await publisher.publish(1)
    assert (server.weight_version, server.paused) == ("default", "in_place")


async def test_engines_of_one_kind_that_hold_different_weights_are_found(fleet, tiny):
    (good, bad), publisher = await fleet(tiny(seed=2), tiny(seed=3))

    async def load_and_spoil(server, body):
        answer = server._update(body)
        with torch.no_grad():
            server.model.lm_head.weight[3, 3] += 1
        return answer

    bad.answers["/update_weights_from_disk"] = load_and_spoil
    with pytest.raises(WeightSyncError, match=r"engines http\S+ and http\S+ loaded the same .*: lm_head.weight"):
        await publisher.publish(1)
    assert good.paused == bad.paused == "in_place"

    bad.server_info["quantization"] = "fp8"  # another kind of engine: nothing to compare
    await publisher.publish(2)
    assert bad.weight_version == "2"


async def test_engines_that_cannot_hash_are_not_compared_and_it_is_said(fleet, tiny, caplog):
    servers, publisher = await fleet(tiny(seed=2), tiny(seed=3))
    servers[0].answers["/weights_checker"] = JSONResponse({"success": False, "message": "no hash"}, status_code=400)
    await publisher.publish(1)
    assert "engines are not compared with each other" in caplog.text
    assert "no hash" in caplog.text


async def test_an_engine_that_is_behind_is_updated_alone(fleet, tiny):
    (ahead, behind), publisher = await fleet(tiny(seed=2), tiny(seed=3))
    await publisher.publish(4)
    behind.weight_version, calls = "0", len(ahead.calls)
    await publisher.publish(4, engines=[publisher._fleet.urls[1]])
    assert len(ahead.calls) == calls
    assert behind.weight_version == "4"


async def test_a_cancelled_update_waits_for_its_load_and_leaves_the_engine_paused(fleet, tiny, disk):
    (server,), publisher = await fleet(tiny(seed=2))
    loaded = []

    async def slow(server, body):
        scope.cancel()
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        loaded.append(server._update(body).status_code)
        return JSONResponse({"success": True})

    server.answers["/update_weights_from_disk"] = slow
    with anyio.CancelScope() as scope:
        await publisher.publish(1)
    assert scope.cancelled_caught
    assert loaded == [200]
    assert (server.weight_version, server.paused) == ("default", "in_place")
    assert left_in(disk) == []


async def test_the_salt_changes_while_no_engine_generates(fleet, tiny):
    salt = PrefixSalt()
    (server,), publisher = await fleet(tiny(seed=2), salt=salt)
    first, seen = salt.current, []

    async def note(server, body):
        seen.append(salt.current)
        return server._update(body)

    async def pause(server, body):
        seen.append(salt.current)
        return server._pause(body)

    server.answers.update({"/update_weights_from_disk": note, "/pause_generation": pause})
    await publisher.publish(7)
    assert seen == [first, salt.current]
    assert salt.current.startswith("7-")
    await publisher.publish(7)
    assert salt.current != seen[1]
    assert salt.current.startswith("7-")
