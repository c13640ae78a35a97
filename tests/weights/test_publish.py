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

from miles_core.errors import TrainError, WeightSyncError
from miles_core.weights.publish import Publisher
from miles_core.weights.receive import ReceiverStatus
from miles_plugins.bridges.qwen3_moe import Qwen3Moe

pytestmark = pytest.mark.anyio
IDS = [1, 2, 3, 5, 8]


class Trainer:
    """The trainer's side in this process; ``damage(delivery)`` runs between staging and sending."""

    def __init__(self, source):
        self.source = source
        self.staged = 0
        self.damage = None

    async def layout(self):
        return self.source.layout

    async def stage(self, bucket):
        delivery, checksum = await anyio.to_thread.run_sync(self.source.stage, bucket)
        self.staged += 1
        if self.damage is not None:
            await self.damage(bucket, delivery)
        return delivery, checksum

    async def release(self, delivery):
        await anyio.to_thread.run_sync(self.source.release, delivery)


@pytest.fixture
def trained(tiny):
    return tiny(seed=1)


@pytest.fixture
def trainer(trained, memory, source_of):
    return Trainer(source_of(trained, memory))


@pytest.fixture
async def fleet(tiny, memory, serve, toy_engine, trainer, http):
    """``engines, publisher = await fleet(model, ...)``."""
    async with AsyncExitStack() as stack:

        async def start(*models, **settings):
            engines = [toy_engine.ToyEngine(model, memory) for model in models]
            urls = [await stack.enter_async_context(serve(engine.app)) for engine in engines]
            settings = {"bucket_bytes": 4000, "timeout": 20.0, "pause_mode": "in_place", **settings}
            return engines, Publisher(urls, trainer, http, **settings)

        yield start


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


async def test_unreachable_engine_is_named(trainer, http, toy_engine):
    sock, url = toy_engine.listening_socket()
    sock.close()
    publisher = Publisher([url], trainer, http, bucket_bytes=100, timeout=5.0, pause_mode="abort")
    with pytest.raises(WeightSyncError, match=f"engine {url}: asking for the layout failed: ClientConnectorError"):
        await publisher.publish(1)


async def test_silent_engine_is_given_up_after_the_timeout(trainer, http, toy_engine):
    sock, url = toy_engine.listening_socket()
    with sock:
        publisher = Publisher([url], trainer, http, bucket_bytes=100, timeout=0.2, pause_mode="abort")
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


async def test_update_of_an_engine_in_an_unrelated_process(trained, trainer, http, memory, tmp_path):
    expected = reference(trained, "bfloat16", tmp_path)
    process = await anyio.to_thread.run_sync(start_engine, tmp_path, "bfloat16")
    try:
        url = (await anyio.to_thread.run_sync(process.stdout.readline)).strip()
        publisher = Publisher([url], trainer, http, bucket_bytes=4000, timeout=30.0, pause_mode="retract")
        await publisher.publish(1)
        async with http.post(f"{url}/logits", json=IDS) as reply:
            answer = await reply.json()
    finally:
        _, errors = await anyio.to_thread.run_sync(process.communicate)
    assert answer["version"] == 1
    assert torch.equal(torch.tensor(answer["logits"]), expected)
    assert (process.returncode, errors) == (0, "")
