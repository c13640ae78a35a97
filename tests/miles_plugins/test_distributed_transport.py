from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import monotonic

import pytest
from torch.distributed import TCPStore

from miles_core.api import Bucket, Opening, Placement, PluginContext, TensorSpec, WeightSyncError, WeightTransport
from miles_plugins.transports.distributed import Distributed

PEER = Path(__file__).with_name("broadcast_peer.py")
SIZE = 20_000_000
"""More than sockets buffer: a rank that does not read is noticed."""
SPEC = TensorSpec("w", "uint8", (SIZE,))
BUCKET = Bucket(0, (Placement(SPEC, SPEC.whole, "w", 0),), SIZE)


@pytest.fixture
def sender():
    transport = Distributed(None, PluginContext())
    yield transport
    transport.close()


def plan_of(name, ranks=1, timeout=30.0):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return {
        "name": name,
        "address": "127.0.0.1",
        "port": port,
        "world_size": 1 + ranks,
        "backend": "gloo",
        "timeout": timeout,
    }


def opening(*plans, active=None):
    names = [plan["name"] for plan in plans]
    return Opening(1, group={"groups": list(plans), "active": names if active is None else active})


class Peer:
    def __init__(self, process):
        self.process = process
        self._started = False

    def start(self):
        """Wait until it is about to join."""
        self._started = self._started or self.said() == "started"
        assert self._started

    def said(self):
        return self.process.stdout.readline().strip()

    def receive(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def join():
    """Starts a rank of a group."""
    started = []

    def starting(plan, rank=1, counts=(SIZE, SIZE)):
        argv = [sys.executable, PEER, plan["port"], rank, plan["world_size"], plan["name"], *counts]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        started.append(subprocess.Popen([str(one) for one in argv], **pipes))
        return Peer(started[-1])

    yield starting
    for process in started:
        process.kill()
        process.communicate()


@contextmanager
def sending(sender, data):
    """The delivery, in a list, after the block."""
    found = []
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(sender.send, BUCKET, memoryview(data))
        yield found
        found.append(future.result())


def data_of():
    return bytearray(os.urandom(SIZE))


def met(sender, peers):
    """A bucket that every peer gets; new ones are waited for first."""
    for peer in peers:
        peer.start()
    data = data_of()
    with sending(sender, data) as found:
        for peer in peers:
            assert peer.said() == "ready"
            peer.receive()
        assert {peer.said() for peer in peers} == {hashlib.sha256(data).hexdigest()}
    assert found == [{"failed": {}}]


def test_all_ranks_of_all_groups_get_the_bytes_and_a_group_is_kept(sender, join):
    assert isinstance(sender, WeightTransport)
    plans = plan_of("one", ranks=2), plan_of("two")
    sender.open(opening(*plans))
    peers = [join(plans[0], 1), join(plans[0], 2), join(plans[1], 1)]
    met(sender, peers)
    sender.open(opening(*plans))
    met(sender, peers)
    assert sender.path() == "broadcast by gloo"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_fails_in_the_middle_does_not_keep_the_bytes_from_others(sender, join, end):
    plans = plan_of("well", timeout=10.0), plan_of("failing", timeout=10.0)
    sender.open(opening(*plans))
    well, failing = join(plans[0]), join(plans[1])
    met(sender, [well, failing])
    assert failing.said() == "ready"
    failing.process.send_signal(end)
    data, started = data_of(), monotonic()
    with sending(sender, data) as found:
        assert well.said() == "ready"
        well.receive()
        assert well.said() == hashlib.sha256(data).hexdigest()
    assert list(found[0]["failed"]) == ["1"]
    assert monotonic() - started < 25


def test_a_new_group_takes_the_place_of_one_that_failed(sender, join):
    plan = plan_of("first")
    sender.open(opening(plan))
    peer = join(plan)
    met(sender, [peer])
    peer.process.kill()
    assert list(sender.send(BUCKET, memoryview(data_of()))["failed"]) == ["0"]
    again = plan_of("second")
    sender.open(opening(again))
    met(sender, [join(again)])


def test_an_engine_that_never_joins_is_given_up(sender):
    sender.open(opening(plan_of("nobody", timeout=0.5)))
    started = monotonic()
    reason = sender.send(BUCKET, memoryview(data_of()))["failed"]["0"]
    assert "gloo group of 2 ranks at 127.0.0.1" in reason
    assert "timeout" in reason
    assert monotonic() - started < 20
    assert "left after a failure" in sender.send(BUCKET, memoryview(data_of()))["failed"]["0"]


def test_an_engine_that_waits_in_a_group_ends_when_the_trainer_leaves_it(sender, join):
    plan = plan_of("three", ranks=2, timeout=60.0)
    sender.open(opening(plan))
    peer = join(plan, rank=1)
    look = TCPStore("127.0.0.1", plan["port"], is_master=False, timeout=timedelta(seconds=60))
    look.wait(["three/three//cpu//0/1"], timedelta(seconds=60))  # it has come, and waits for rank 2
    sender.open(opening())
    assert peer.process.wait(30) != 0


def test_groups_that_rest_are_kept(sender, join):
    plans = plan_of("one"), plan_of("two")
    sender.open(opening(*plans))
    peers = [join(plan) for plan in plans]
    met(sender, peers)
    sender.open(opening(*plans, active=["two"]))
    met(sender, peers[1:])
    sender.open(opening(*plans, active=["one"]))
    met(sender, peers[:1])


def test_a_port_that_is_taken_is_an_error_with_a_remedy(sender):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        plan = plan_of("one") | {"port": taken.getsockname()[1]}
        with pytest.raises(WeightSyncError, match="nothing can listen at 127.0.0.1") as caught:
            sender.open(opening(plan))
    assert "another port" in (caught.value.remedy or "")


def test_a_group_on_gpus_needs_a_trainer_on_one(sender, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(WeightSyncError, match="needs NCCL; the trainer sees no GPU"):
        sender.open(opening(plan_of("one") | {"backend": "nccl"}))


def test_wrong_buckets_are_refused_before_anyone_waits(sender):
    with pytest.raises(WeightSyncError, match="must be opened for at least one engine"):
        sender.send(BUCKET, memoryview(bytearray(SIZE)))
    sender.open(opening(plan_of("one")))
    with pytest.raises(WeightSyncError, match="its payload 3"):
        sender.send(BUCKET, memoryview(bytearray(3)))
    part = Bucket(0, (Placement(SPEC, ((0, 5),), "w", 0),), 5)
    with pytest.raises(WeightSyncError, match=r"whole tensors; bucket 0 holds w\[0:5\]"):
        sender.send(part, memoryview(bytearray(5)))


def test_our_servers_take_none(sender):
    with pytest.raises(WeightSyncError, match="join no process group"):
        sender.receive({}, BUCKET, bytearray)
