"""One version into every engine: what arrives, and what is checked on the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import torch

from miles_core.api import PluginContext
from miles_core.errors import WeightSyncError
from miles_core.weights.auto_choice import AutoChoice
from miles_core.weights.publish import Publisher
from miles_core.weights.receive import ReceiverStatus
from miles_plugins.transports.disk import Disk
from miles_plugins.transports.memory import Memory

from .publishing import IDS, reference

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_engines_answer_with_the_trained_weights(
    fleet, trained, trainer, tiny, memory, layout_of, tmp_path, dtype
):
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
    layout = layout_of(engines[0].model)
    assert (result.manifest.version, result.lost, result.transport, result.path) == (1, {}, "memory", "")
    assert result.manifest.tensors == len(layout.tensors)
    assert result.manifest.nbytes == sum(tensor.nbytes for tensor in layout.tensors.values())
    held = engines[1].receiver.checksums(layout.placements).checksums
    labels = [f"{placement.label}:{dtype}" for placement in layout.placements]
    assert result.manifest.checksums == dict(zip(labels, held, strict=True))
    assert list(result.seconds) == [
        "plan", "prepare", "pause", "begin", "transfer", "verify", "commit", "resume",
    ]  # fmt: skip
    assert min(result.seconds.values()) >= 0
    assert trainer.staged > 3, "both get what was staged once"
    assert not memory._sent


async def test_second_version_carries_the_change(fleet, trained, tiny, tmp_path):
    (engine,), publisher = await fleet(tiny(seed=2))
    await publisher.publish(1)
    with torch.no_grad():
        trained.model.layers[1].mlp.experts.gate_up_proj.mul_(3)
    await publisher.publish(2)
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
            memory._sent[delivery["segment"]].buf[17] ^= 1

    trainer.damage = flip
    with pytest.raises(
        WeightSyncError, match=r"engine http://.*: verify was refused with status 409: .* in bucket 1 is not"
    ):
        await publisher.publish(1)
    assert engine.out_of_service.startswith("weights are torn")
    assert engine.paused == "in_place"
    assert engine.calls[-1] == "/weights/abort"
    assert not memory._sent

    trainer.damage = None
    await publisher.publish(1)
    assert (engine.version, engine.out_of_service, engine.paused) == (1, None, None)


async def test_unclaimed_buffer_is_refused_before_anything_is_paused(fleet, tiny, trainer):
    model = tiny(seed=2)
    model.model.layers[0].register_buffer("expert_bias", torch.zeros(4))
    (engine,), publisher = await fleet(model)
    with pytest.raises(
        WeightSyncError, match=r"it has parameters .*expert_bias: no one sends model.layers.0.expert_bias"
    ):
        await publisher.publish(1)
    assert set(engine.calls) == {"/weights/layout"}
    assert trainer.staged == 0


def sglang_tensors(model):
    """A model's parameters as SGLang fuses and names them, in memory of their own."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        block, _, kind = name.rpartition(".self_attn.")
        if kind in ("k_proj.weight", "v_proj.weight"):
            continue
        if kind == "q_proj.weight":
            parts = [model.state_dict()[f"{block}.self_attn.{one}_proj.weight"] for one in "qkv"]
            tensors[f"{block}.self_attn.qkv_proj.weight"] = torch.cat(parts)
        else:
            renamed = name.replace("experts.gate_up_proj", "experts.w13_weight")
            tensors[renamed.replace("experts.down_proj", "experts.w2_weight")] = tensor.clone()
    return tensors


async def test_engines_of_different_types_and_fusions_each_get_exactly_their_bytes(
    fleet, trained, tiny, memory, serve, toy_engine, trainer
):
    (full, half), publisher = await fleet(tiny(seed=2), tiny(seed=3, dtype=torch.bfloat16))
    empty = {name: torch.full_like(tensor, 7) for name, tensor in sglang_tensors(trained).items()}
    fused = toy_engine.ToyEngine(None, memory, tensors=empty, naming="sglang-like")
    async with serve(fused.app) as url:
        publisher._fleet.urls.append(url)
        result = await publisher.publish(1)
    assert result.lost == {}
    for name, tensor in trained.state_dict().items():
        assert torch.equal(full.tensors[name], tensor), name
        assert torch.equal(half.tensors[name], tensor.bfloat16()), name
    for name, tensor in sglang_tensors(trained).items():
        assert torch.equal(fused.tensors[name], tensor), name
    assert {engine.receiver.status for engine in (full, half, fused)} == {ReceiverStatus(1, torn=False)}
    ((transport, opening),) = trainer.openings
    assert (transport, opening.version, len(opening.streams)) == ("memory", 1, 3)
    assert [stream.bases for stream in opening.streams] == [(-1,), (-1,), (-1,)]
    whole = sum(tensor.nbytes for tensor in trained.state_dict().values())
    assert [sum(one.nbytes for one in stream.placements) for stream in opening.streams] == [whole, whole // 2, whole]
    types = {label.rpartition(":")[2] for label in result.manifest.checksums}
    assert types == {"float32", "bfloat16"}


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
    other = toy_engine.ToyEngine(tiny(seed=3, dtype=torch.bfloat16), memory)
    async with serve(other.app) as url:
        publisher._fleet.urls.append(url)
        await publisher.publish(2)
    assert engine.version == other.version == 2
    assert torch.equal(other.model.lm_head.weight, engine.model.lm_head.weight.bfloat16())


async def test_another_engine_at_the_same_address_is_asked_anew(fleet, tiny, memory, toy_engine):
    (engine,), publisher = await fleet(tiny(seed=2))
    await publisher.publish(1)
    other = toy_engine.ToyEngine(tiny(seed=3, dtype=torch.bfloat16), memory)
    engine.receiver.__dict__.update(other.receiver.__dict__)
    await publisher.publish(2)
    assert torch.equal(other.model.lm_head.weight, engine.model.lm_head.weight.bfloat16())


@pytest.fixture
async def by_disk(tiny, trained, serve, toy_engine, source_of, trainer_of, http, fleet_of, choice_of, tmp_path):
    """An engine, its publisher, the trainer and the folder, joined by files."""
    transport = Disk(Disk.Config(dir=str(tmp_path)), PluginContext())
    trainer = trainer_of(source_of(trained, transport))
    engine = toy_engine.ToyEngine(tiny(seed=2), transport)
    options = {"bucket_bytes": 4000, "timeout": 20.0, "pause_mode": "in_place", "choice": choice_of("disk", Disk)}
    async with serve(engine.app) as url:
        yield engine, Publisher(fleet_of([url]), trainer, http, **options), trainer, tmp_path
    transport.close()


async def test_files_feed_our_receiver_too_and_one_is_written_while_another_is_read(by_disk, trained, tmp_path_factory):
    engine, publisher, trainer, folder = by_disk
    most = []

    async def count(bucket, delivery):
        most.append(len([*folder.glob("*/bucket-*")]))

    trainer.damage = count
    await publisher.publish(1)
    assert trainer.staged > 3
    assert max(most) == 2
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
    with pytest.raises(WeightSyncError, match="in bucket 1 is not what was sent"):
        await publisher.publish(1)
    assert engine.out_of_service.startswith("weights are torn")
    assert [*folder.iterdir()] == []


async def test_another_transport_goes_on_where_one_has_no_room(
    tiny, trained, serve, toy_engine, source_of, trainer_of, http, fleet_of, way_of, tmp_path, monkeypatch
):
    def full(bucket):
        raise WeightSyncError("shared memory is full")

    ends = {"memory": Memory(None, PluginContext()), "disk": Disk(Disk.Config(dir=str(tmp_path)), PluginContext())}
    monkeypatch.setattr(ends["memory"], "buffer", full)
    source = source_of(trained, ends["memory"])
    monkeypatch.setattr(source, "_make", ends.__getitem__)
    engine = toy_engine.ToyEngine(tiny(seed=2), ends["disk"])
    auto = AutoChoice([way_of("memory", Memory), way_of("disk", Disk)], has_folder=True)
    async with serve(engine.app) as url:
        publisher = Publisher(
            fleet_of([url]),
            trainer_of(source),
            http,
            bucket_bytes=4000,
            timeout=20.0,
            pause_mode="in_place",
            choice=auto,
        )
        assert (await publisher.publish(1)).transport == "disk"
        assert (await publisher.publish(2)).transport == "disk", "memory is not tried again"
    assert (engine.version, engine.out_of_service, engine.paused) == (2, None, None)
    for end in ends.values():
        end.close()
