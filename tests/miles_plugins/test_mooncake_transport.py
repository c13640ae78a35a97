from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from miles_core.api import (
    Bucket,
    Opening,
    Placement,
    PluginContext,
    StreamTargets,
    TensorSpec,
    WeightSyncError,
    WeightTransport,
)
from miles_plugins.transports.mooncake import Mooncake

PEER = Path(__file__).with_name("mooncake_peer.py")
BIG = 128 << 20


@pytest.fixture(autouse=True)
def _mooncake():
    try:
        importlib.import_module("mooncake.engine")
    except ImportError as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"Mooncake cannot be loaded: {error}")


class PeerProcess:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(PEER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __getattr__(self, name):
        def call(*arguments):
            self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())

        return call

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def peers():
    """Starts engines' ends; all of them are killed after the test."""
    started = []

    def start(count, **parameters):
        new = [PeerProcess() for _ in range(count)]
        started.extend(new)
        for peer in new:
            peer.make(parameters)
        return new

    yield start
    for peer in started:
        peer.end()


@pytest.fixture
def sender():
    transport = Mooncake(Mooncake.Config(protocol="tcp", stall_timeout=1), PluginContext())
    yield transport
    transport.close()


def placed(parameter, shape, *, offset=0, strides=None, dtype="uint8"):
    spec = TensorSpec(f"checkpoint.{parameter}.{offset}", dtype, tuple(shape))
    return Placement(spec, spec.whole, parameter, offset, strides)


def bucket_of(*placements, index=0, stream=0):
    return Bucket(index, placements, sum(one.nbytes for one in placements), stream)


def opened(sender, peers, *placements):
    offers = tuple(peer.offer() for peer in peers)
    sender.open(Opening(1, (StreamTargets(placements, offers, (None,) * len(peers)),)))
    return offers


def data_of(bucket, seed=0):
    return torch.randint(1, 256, (bucket.nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_bytes_lie_in_the_live_parameters_of_every_receiver_when_send_returns(sender, peers):
    assert isinstance(sender, WeightTransport)
    both = peers(2, w=["bfloat16", [64, 32]], v=["float32", [7]], empty=["float32", [0, 4]])
    both[0].tie("tied", "w")
    bucket = bucket_of(placed("v", [7], dtype="float32"), placed("w", [64, 32], dtype="bfloat16"))
    offers = opened(sender, both, *bucket.placements)
    assert offers[0]["nbytes"] == {"w": 4096, "v": 28, "tied": 4096}
    assert offers[0]["addresses"]["tied"] == offers[0]["addresses"]["w"]
    data = data_of(bucket)
    delivery = sender.send(bucket, data.numpy().data)
    assert delivery == {"stream": 0, "bucket": 0, "nbytes": 4124}
    for peer in both:
        held = peer.held()
        assert held["v"] + held["w"] == bytes(data.numpy()).hex()
        assert peer.receive(delivery, bucket.to_json()) is None
    sender.release(delivery)
    assert sender.path() == "TCP (as configured)"


def test_boxes_go_to_where_their_strides_say(sender, peers):
    [peer] = peers(1, w=["bfloat16", [48, 16]], fused=["float32", [8, 12]], kept=["uint8", [4]])
    turned = placed("w", [16, 48], strides=(1, 16), dtype="bfloat16")  # the parameter is the tensor transposed
    left = placed("fused", [8, 4], strides=(12, 1), dtype="float32")
    right = placed("fused", [8, 8], offset=16, strides=(12, 1), dtype="float32")
    bucket = bucket_of(turned, left, right)
    opened(sender, [peer], *bucket.placements)
    data = data_of(bucket)
    assert "failed" not in sender.send(bucket, data.numpy().data)
    parts = [part.contiguous() for part in data.split([turned.nbytes, left.nbytes, right.nbytes])]
    w = parts[0].view(torch.bfloat16).view(16, 48).T.contiguous()
    fused = torch.cat([parts[1].view(8, 16), parts[2].view(8, 32)], 1).contiguous()
    held = peer.held()
    assert held["w"] == bytes(w.view(-1).view(torch.uint8).numpy()).hex()
    assert held["fused"] == bytes(fused.view(-1).numpy()).hex()
    assert held["kept"] == "00" * 4


def test_more_writes_than_mooncake_queues_arrive_and_the_next_bucket_too(sender, peers):
    [peer] = peers(1, w=["uint8", [20_000]])
    # Every other pair of bytes, from the end to the beginning: no two are one write.
    bucket = bucket_of(*(placed("w", [2], offset=offset) for offset in range(19_996, -1, -4)))
    opened(sender, [peer], *bucket.placements)
    for seed in (1, 2):
        data = data_of(bucket, seed)
        delivery = sender.send(bucket, data.numpy().data)
        sender.release(delivery)
        assert "failed" not in delivery
        expected = torch.zeros(20_000, dtype=torch.uint8).view(5000, 4)
        expected[:, :2] = data.view(5000, 2).flip(0)
        assert peer.held()["w"] == bytes(expected.view(-1).numpy()).hex()


def test_memory_that_moved_is_written_where_it_is_now_and_its_old_place_is_refused(sender, peers):
    [peer] = peers(1, w=["uint8", [4096]])
    bucket = bucket_of(placed("w", [4096]))
    before = opened(sender, [peer], *bucket.placements)
    sender.release(sender.send(bucket, data_of(bucket, 1).numpy().data))
    peer.make({"w": ["uint8", [4096]]})
    after = opened(sender, [peer], *bucket.placements)
    assert before[0]["addresses"] != after[0]["addresses"]
    assert before[0]["session"] == after[0]["session"]
    data = data_of(bucket, 2)
    sender.release(sender.send(bucket, data.numpy().data))
    assert peer.held()["w"] == bytes(data.numpy()).hex()
    sender.open(Opening(2, (StreamTargets(bucket.placements, before, (None,)),)))
    assert "moved its memory" in sender.send(bucket, data.numpy().data)["failed"]["0"]


def test_a_receiver_killed_in_the_middle_fails_at_once_with_its_address(sender, peers):
    [dying] = peers(1, w=["uint8", [BIG]])
    bucket = bucket_of(placed("w", [BIG]))
    offers = opened(sender, [dying], *bucket.placements)
    data = torch.full([BIG], 7, dtype=torch.uint8)
    dying.signal_when_written("w", signal.SIGKILL)
    started = time.monotonic()
    failed = sender.send(bucket, data.numpy().data)["failed"]
    assert time.monotonic() - started < 2
    assert failed["0"].startswith(f"writing into {offers[0]['session']} failed after 0 of 1 writes: it died")


def test_the_others_of_a_stream_get_all_when_one_is_killed_in_the_middle(sender, peers):
    dying, living = peers(2, w=["uint8", [BIG]], v=["uint8", [8]])
    bucket, later = bucket_of(placed("w", [BIG])), bucket_of(placed("v", [8]), index=1)
    opened(sender, [dying, living], *bucket.placements, *later.placements)
    dying.signal_when_written("w", signal.SIGKILL)
    failed = sender.send(bucket, torch.full([BIG], 7, dtype=torch.uint8).numpy().data)["failed"]
    assert list(failed) == ["0"]
    assert living.sum() == {"w": 7 * BIG, "v": 0}
    assert sender.send(later, memoryview(bytes(range(8))))["failed"] == failed
    assert living.sum()["v"] == 28


def test_a_receiver_stopped_in_the_middle_fails_after_the_time_out_and_the_other_gets_all(sender, peers):
    stopping, living = peers(2, w=["uint8", [BIG]], v=["uint8", [8]])
    bucket, later = bucket_of(placed("w", [BIG])), bucket_of(placed("v", [8]), index=1)
    opened(sender, [stopping, living], *bucket.placements, *later.placements)
    stopping.signal_when_written("w", signal.SIGSTOP)
    data = torch.full([BIG], 7, dtype=torch.uint8)
    assert list(sender.send(bucket, data.numpy().data)["failed"]) == ["0"]
    assert living.sum()["w"] == 7 * BIG
    started = time.monotonic()
    assert list(sender.send(later, memoryview(bytes(range(8))))["failed"]) == ["0"]
    assert time.monotonic() - started < 0.5  # it is not waited for again
    assert living.sum()["v"] == 28


def test_a_stopped_receiver_that_came_back_is_whole_after_the_next_update(sender, peers):
    [peer] = peers(1, w=["uint8", [BIG]])
    bucket = bucket_of(placed("w", [BIG]))
    opened(sender, [peer], *bucket.placements)
    peer.signal_when_written("w", signal.SIGSTOP)
    assert sender.send(bucket, torch.full([BIG], 7, dtype=torch.uint8).numpy().data)["failed"]
    peer.process.send_signal(signal.SIGCONT)
    peer.close()  # what still lies in its socket must not land on the next version
    opened(sender, [peer], *bucket.placements)
    assert "failed" not in sender.send(bucket, torch.full([BIG], 3, dtype=torch.uint8).numpy().data)
    assert peer.sum() == {"w": 3 * BIG}


def test_a_receiver_that_stopped_before_the_first_contact_is_given_up_in_time(sender, peers):
    stopped, living = peers(2, w=["uint8", [64]])
    bucket = bucket_of(placed("w", [64]))
    offers = tuple(peer.offer() for peer in (stopped, living))
    stopped.process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    sender.open(Opening(1, (StreamTargets(bucket.placements, offers, (None, None)),)))
    failed = sender.send(bucket, torch.full([64], 1, dtype=torch.uint8).numpy().data)["failed"]
    assert time.monotonic() - started < 3
    assert failed == {"0": f"its transfer engine at {offers[0]['session']} did not answer within 1 s"}
    assert living.sum() == {"w": 64}


def test_a_receiver_whose_end_is_closed_fails_in_words(sender, peers):
    [peer] = peers(1, w=["uint8", [64]])
    bucket = bucket_of(placed("w", [64]))
    offers = opened(sender, [peer], *bucket.placements)
    peer.close()
    failed = sender.send(bucket, memoryview(bytes(64)))["failed"]
    assert failed["0"].startswith(f"writing into {offers[0]['session']} failed after 0 of 1 writes")


def test_two_streams_get_their_own_bytes(sender, peers):
    one, other = peers(2, w=["uint8", [64]])
    streams = tuple(StreamTargets((placed("w", [64]),), (peer.offer(),), (None,)) for peer in (one, other))
    sender.open(Opening(1, streams))
    for stream, value in enumerate((5, 6)):
        sender.send(bucket_of(placed("w", [64]), stream=stream), memoryview(bytes([value] * 64)))
    assert (one.sum(), other.sum()) == ({"w": 5 * 64}, {"w": 6 * 64})


@pytest.mark.parametrize(
    ("placement", "said"),
    [(("absent", [64]), "did not offer it"), (("w", [65]), "holds 64 bytes"), (("w", [32], 40), "holds 64 bytes")],
)
def test_what_does_not_fit_is_refused_before_the_first_byte(sender, peers, placement, said):
    [peer] = peers(1, w=["uint8", [64]])
    name, shape, *offset = placement
    bad = placed(name, shape, offset=sum(offset))
    with pytest.raises(WeightSyncError, match=said):
        opened(sender, [peer], placed("w", [64]), bad)
    opened(sender, [peer], placed("w", [64]))
    with pytest.raises(WeightSyncError, match=said):  # a bucket that the opening did not announce
        sender.send(bucket_of(placed("w", [8]), bad), memoryview(bytes(8 + bad.nbytes)))
    assert peer.sum() == {"w": 0}


def test_a_receiver_that_speaks_another_protocol_is_lost_with_the_reason(sender, peers):
    [peer] = peers(1, w=["uint8", [64]])
    offer = {**peer.offer(), "protocol": "rdma"}
    sender.open(Opening(1, (StreamTargets((placed("w", [64]),), (offer,), (None,)),)))
    delivery = sender.send(bucket_of(placed("w", [64])), memoryview(bytes(64)))
    assert delivery["failed"] == {"0": "its end uses rdma, the trainer's tcp"}


def test_a_bucket_must_fit_its_payload_and_be_released_before_it_comes_again(sender, peers):
    bucket = bucket_of(placed("w", [64]))
    with pytest.raises(WeightSyncError, match=r"before open\(\)"):
        sender.send(bucket, memoryview(bytes(64)))
    opened(sender, peers(1, w=["uint8", [64]]), *bucket.placements)
    with pytest.raises(WeightSyncError, match="has 64 bytes; its payload 63"):
        sender.send(bucket, memoryview(bytes(63)))
    with pytest.raises(WeightSyncError, match="is for stream 1; 1 are open"):
        sender.send(bucket_of(placed("w", [64]), stream=1), memoryview(bytes(64)))
    delivery = sender.send(bucket, memoryview(bytes(64)))
    with pytest.raises(WeightSyncError, match="sent before and is not released"):
        sender.send(bucket, memoryview(bytes(64)))
    sender.release(delivery)
    with pytest.raises(WeightSyncError, match="holds no bucket 0"):
        sender.release(delivery)


def test_a_receiver_takes_only_deliveries_of_its_bucket_into_what_it_offered():
    end = Mooncake(Mooncake.Config(protocol="tcp", host="127.0.0.1"), PluginContext())
    bucket = bucket_of(placed("w", [64]))
    delivery = {"stream": 0, "bucket": 0, "nbytes": 64}
    with pytest.raises(WeightSyncError, match="fills w, which this end did not offer"):
        end.receive(delivery, bucket, bytearray)
    end.offer({"w": torch.zeros(64, dtype=torch.uint8)})
    assert end.receive(delivery, bucket, bytearray) is None
    for wrong in ({"bucket": 1}, {"nbytes": 63}):
        with pytest.raises(WeightSyncError, match="its delivery says bucket"):
            end.receive({**delivery, **wrong}, bucket, bytearray)
    end.close()
    with pytest.raises(WeightSyncError, match="did not offer"):
        end.receive(delivery, bucket, bytearray)


def test_parameters_without_memory_are_refused():
    end = Mooncake(Mooncake.Config(protocol="tcp", host="127.0.0.1"), PluginContext())
    released = torch.zeros(64)
    released.untyped_storage().resize_(0)
    with pytest.raises(WeightSyncError, match="cannot be registered"):
        end.offer({"w": released})
    end.close()


def test_parameters_on_another_device_are_refused_by_a_build_for_cpus():
    end = Mooncake(Mooncake.Config(), PluginContext())
    with pytest.raises(WeightSyncError, match="takes the memory of CPUs only"):
        end.offer({"w": torch.zeros(4, device="meta")})


def test_without_mooncake_the_error_says_what_to_install(monkeypatch):
    assert Mooncake.unavailable() is None
    monkeypatch.setitem(sys.modules, "mooncake.engine", None)
    assert Mooncake.unavailable().startswith("Mooncake cannot be loaded: ")
    with pytest.raises(WeightSyncError, match=r"Install miles-hub\[mooncake-cpu\]"):
        Mooncake(Mooncake.Config(protocol="tcp"), PluginContext()).open(Opening(1))


def test_the_way_of_the_bytes_is_logged_when_an_end_opens(caplog):
    end = Mooncake(Mooncake.Config(protocol="tcp"), PluginContext())
    with caplog.at_level(logging.INFO, logger="miles"):
        end.open(Opening(1))
    assert "weights travel by TCP (as configured), from or to" in caplog.text
    end.close()


def test_trainer_and_sglang_have_the_same_version_of_mooncake():
    root = Path(__file__).parents[2]
    files = ("constraints.txt", "miles_core/engine/sglang/cpu/requirements.txt", "pyproject.toml")
    pins = [
        re.findall(r"mooncake-transfer-engine(?:-non-cuda)?==([\w.]+)", (root / name).read_text()) for name in files
    ]
    assert {pin for found in pins for pin in found} == {importlib.metadata.version("mooncake-transfer-engine-non-cuda")}
    assert [len(found) for found in pins] == [2, 1, 2]
