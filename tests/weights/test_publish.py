from __future__ import annotations

import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import torch

from miles_core.api import PluginContext
from miles_core.errors import TrainError, WeightSyncError
from miles_core.weights.publish import Publisher
from miles_core.weights.receive import ReceiverStatus
from miles_core.weights.receiver_updates import ReceiverUpdates
from miles_plugins.bridges.qwen3_moe import Qwen3Moe
from miles_plugins.transports.disk import Disk

pytestmark = pytest.mark.anyio
IDS = [1, 2, 3, 5, 8]


@pytest.fixture
def trained(tiny):
    return tiny(seed=1)


@pytest.fixture
def trainer(trained, memory, source_of, trainer_of):
    return trainer_of(source_of(trained, memory))


@pytest.fixture
async def fleet(tiny, memory, serve, toy_engine, trainer, http, fleet_of):
    """``engines, publisher = await fleet(model, ...)``."""
    async with AsyncExitStack() as stack:

        async def start(*models, **settings):
            engines = [toy_engine.ToyEngine(model, memory) for model in models]
            urls = [await stack.enter_async_context(serve(engine.app)) for engine in engines]
            settings = {"bucket_bytes": 4000, "timeout": 20.0, "pause_mode": "in_place", **settings}
            return engines, Publisher(fleet_of(urls), trainer, http, updates=ReceiverUpdates(), **settings)

        yield start


@pytest.fixture
def alone(trainer, http, fleet_of):
    """Makes the publisher of one engine."""

    def make(url, **settings):
        settings = {"bucket_bytes": 4000, "timeout": 30.0, "pause_mode": "abort", **settings}
        return Publisher(fleet_of([url]), trainer, http, updates=ReceiverUpdates(), **settings)

    return make


def reference(trained, dtype, path):
    """The trained model as an engine of that type would load it from disk."""
    trained.save_pretrained(path)
    model = Qwen3Moe(None, None).build(str(path), dtype=dtype, init="pretrained", seed=0)
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits.float()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_engines_answer_with_the_trained_weights(fleet, trained, trainer, tiny, memory, tmp_path, dtype):
    models = [tiny(seed=seed, dtype=getattr(torch, dtype)) for seed in (2, 3)]
    engines, publisher = await fleet(*models)
    expected = reference(trained, dtype, tmp_path)
    assert not torch.equal(engines[0].logits(IDS), expected)

    result = await publisher.publish(1)

    for engine in engines:
        assert torch.equal(engine.logits(IDS), expected)
        assert (engine.version, engine.out_of_service, engine.paused) == (1, None, None)
        steps = [path for i, path in enumerate(engine.calls) if path not in engine.calls[:i]]
        assert steps == [
            "/weights/layout", "/pause_generation", "/weights/begin", "/weights/receive", "/weights/verify",
            "/weights/commit", "/continue_generation",
        ]  # fmt: skip
    layout = engines[0].receiver.layout
    assert result.manifest.version == 1
    assert result.manifest.tensors == len(layout.tensors)
    assert result.manifest.nbytes == sum(tensor.nbytes for tensor in layout.tensors.values())
    assert len(result.manifest.checksums) == trainer.staged > 3
    assert not memory._segments


async def test_second_version_reuses_the_plan_and_carries_the_change(fleet, trained, tiny, tmp_path):
    (engine,), publisher = await fleet(tiny(seed=2))
    await publisher.publish(1)
    with torch.no_grad():
        trained.model.layers[1].mlp.experts.gate_up_proj.mul_(3)
    await publisher.publish(2)
    assert engine.calls.count("/weights/layout") == 1
    assert engine.version == 2
    assert torch.equal(engine.logits(IDS), reference(trained, "float32", tmp_path))


async def test_tied_embeddings_travel_once(fleet, tiny, trainer, source_of, memory, tmp_path):
    tied = tiny(seed=1, tie_word_embeddings=True)
    trainer.source = source_of(tied, memory)
    (engine,), publisher = await fleet(tiny(seed=2, tie_word_embeddings=True))
    await publisher.publish(1)
    assert torch.equal(engine.logits(IDS), reference(tied, "float32", tmp_path))


async def test_corrupted_byte_is_caught_and_the_engine_stays_torn(fleet, trainer, tiny, memory):
    (engine,), publisher = await fleet(tiny(seed=2))

    async def flip(bucket, delivery):
        if bucket.index == 1:
            memory._segments[delivery["segment"]].buf[17] ^= 1

    trainer.damage = flip
    with pytest.raises(WeightSyncError, match=r"engine http://.*: verify was refused with status 409: bucket 1 is not"):
        await publisher.publish(1)
    assert engine.out_of_service.startswith("weights are torn")
    assert engine.paused == "in_place"
    assert engine.calls[-1] == "/weights/abort"
    assert not memory._segments

    trainer.damage = None
    await publisher.publish(1)
    assert (engine.version, engine.out_of_service, engine.paused) == (1, None, None)


async def test_refusal_before_the_first_byte_restores_every_engine(fleet, trainer, tiny):
    (stale, ahead), publisher = await fleet(tiny(seed=2), tiny(seed=3))
    await publisher.publish(5)
    before = stale.logits(IDS)
    with pytest.raises(WeightSyncError, match=r"2 of 2 engines failed: .*versions only grow"):
        await publisher.publish(4)
    ahead.refuse["/weights/begin"] = "no"
    with pytest.raises(WeightSyncError, match=r"begin of version 6 was refused with status 500: no"):
        await publisher.publish(6)
    assert torch.equal(stale.logits(IDS), before)
    assert (stale.paused, stale.out_of_service, stale.version) == (None, None, 5)
    assert ahead.paused is None


async def test_unclaimed_buffer_is_refused_before_anything_is_paused(fleet, tiny, trainer):
    model = tiny(seed=2)
    model.model.layers[0].register_buffer("expert_bias", torch.zeros(4))
    (engine,), publisher = await fleet(model)
    with pytest.raises(WeightSyncError, match=r"no one sends what engine 0 needs: 1 \(model.layers.0.expert_bias\)"):
        await publisher.publish(1)
    assert engine.calls == ["/weights/layout"]
    assert trainer.staged == 0


async def test_engine_that_fails_to_commit_keeps_all_engines_from_resuming(fleet, tiny):
    (good, bad), publisher = await fleet(tiny(seed=2), tiny(seed=3))
    bad.refuse["/weights/commit"] = "disk on fire"
    with pytest.raises(WeightSyncError, match="commit was refused with status 500: disk on fire"):
        await publisher.publish(1)
    assert good.receiver.status == ReceiverStatus(1, torn=False)
    assert bad.receiver.status == ReceiverStatus(-1, torn=True)
    assert good.paused == bad.paused == "in_place"

    bad.refuse.clear()
    await publisher.publish(2)
    assert good.version == bad.version == 2
    assert good.paused is bad.paused is None


async def test_failing_trainer_is_named_and_engines_without_a_byte_resume(fleet, trainer, tiny):
    (engine,), publisher = await fleet(tiny(seed=2))

    async def fail(bucket, delivery):
        raise TrainError("rank 3 died", remedy="Restart it.")

    trainer.damage = fail
    with pytest.raises(WeightSyncError, match="trainer: staging bucket 0 failed: rank 3 died") as caught:
        await publisher.publish(1)
    assert caught.value.remedy == "Restart it."
    assert (engine.paused, engine.out_of_service) == (None, None)


async def test_unreachable_engine_is_named(alone, toy_engine):
    sock, url = toy_engine.listening_socket()
    sock.close()
    publisher = alone(url, timeout=5.0)
    with pytest.raises(WeightSyncError, match=f"engine {url}: asking for the layout failed: ClientConnectorError"):
        await publisher.publish(1)


async def test_silent_engine_is_given_up_after_the_timeout(alone, toy_engine):
    sock, url = toy_engine.listening_socket()
    with sock:
        publisher = alone(url, timeout=0.2)
        with pytest.raises(WeightSyncError, match=f"engine {url}: asking for the layout failed: .*Timeout"):
            await publisher.publish(1)


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
    assert not memory._segments


def start_engine(path, dtype):
    script = Path(__file__).with_name("toy_engine.py")
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, script, path, dtype], text=True, **pipes)


async def test_update_of_an_engine_in_an_unrelated_process(trained, alone, http, tmp_path):
    expected = reference(trained, "bfloat16", tmp_path)
    process = await anyio.to_thread.run_sync(start_engine, tmp_path, "bfloat16")
    try:
        url = (await anyio.to_thread.run_sync(process.stdout.readline)).strip()
        publisher = alone(url, pause_mode="retract")
        await publisher.publish(1)
        async with http.post(f"{url}/logits", json=IDS) as reply:
            answer = await reply.json()
    finally:
        _, errors = await anyio.to_thread.run_sync(process.communicate)
    assert answer["version"] == 1
    assert torch.equal(torch.tensor(answer["logits"]), expected)
    assert (process.returncode, errors) == (0, "")


async def test_an_engine_that_is_behind_is_updated_alone(fleet, tiny):
    (ahead, behind), publisher = await fleet(tiny(seed=2), tiny(seed=3))
    await publisher.publish(2, engines=[publisher._fleet.urls[1]])
    assert (ahead.version, behind.version) == (-1, 2)
    assert ahead.calls == []


async def test_an_engine_that_joins_is_planned_for(fleet, tiny, memory, serve, toy_engine):
    (engine,), publisher = await fleet(tiny(seed=2))
    await publisher.publish(1)
    other = toy_engine.ToyEngine(tiny(seed=3, intermediate_size=32, num_hidden_layers=1), memory)
    async with serve(other.app) as url:
        publisher._fleet.urls.append(url)
        with pytest.raises(WeightSyncError, match="engine 1 claims nothing of what the trainer sends as"):
            await publisher.publish(2)
    assert engine.version == 1


async def test_without_a_live_engine_the_version_is_committed_to_no_one(fleet, trainer):
    _, publisher = await fleet()
    result = await publisher.publish(3)
    assert (result.manifest.version, result.manifest.nbytes, trainer.staged) == (3, 0, 0)


@pytest.fixture
async def by_disk(tiny, trained, serve, toy_engine, source_of, trainer_of, http, fleet_of, tmp_path):
    """An engine, its publisher, the trainer and the folder, joined by files."""
    transport = Disk(Disk.Config(dir=str(tmp_path)), PluginContext())
    trainer = trainer_of(source_of(trained, transport))
    engine = toy_engine.ToyEngine(tiny(seed=2), transport)
    options = {"bucket_bytes": 4000, "timeout": 20.0, "pause_mode": "in_place", "updates": ReceiverUpdates()}
    async with serve(engine.app) as url:
        yield engine, Publisher(fleet_of([url]), trainer, http, **options), trainer, tmp_path
    transport.close()


async def test_files_feed_our_receiver_too_one_bucket_at_a_time(by_disk, trained, tmp_path_factory):
    engine, publisher, trainer, folder = by_disk
    most = []

    async def count(bucket, delivery):
        most.append(len([*folder.glob("*/bucket-*")]))

    trainer.damage = count
    await publisher.publish(1)
    assert set(most) == {1}
    assert [*folder.iterdir()] == []
    assert torch.equal(engine.logits(IDS), reference(trained, "float32", tmp_path_factory.mktemp("reference")))


def flip_last_byte(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


async def test_a_corrupted_file_is_caught_by_our_receiver(by_disk):
    engine, publisher, trainer, folder = by_disk

    async def flip(bucket, delivery):
        if bucket.index == 1:
            flip_last_byte(Path(delivery["file"]))

    trainer.damage = flip
    with pytest.raises(WeightSyncError, match="bucket 1 is not what was sent"):
        await publisher.publish(1)
    assert engine.out_of_service.startswith("weights are torn")
    assert [*folder.iterdir()] == []
