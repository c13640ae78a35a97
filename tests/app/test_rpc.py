"""The RPC between driver and trainer: values, errors, and a peer that goes away."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import anyio
import numpy as np
import pytest
from anyio import to_thread

from miles_core.app.rpc import RemoteCaller, serve
from miles_core.errors import CheckpointError, TrainError

pytestmark = pytest.mark.anyio


class Target:
    def __init__(self):
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def hold(self):
        self.entered.release()
        assert self.gate.acquire(timeout=20)
        return "late"

    def size(self, data):
        return len(data)

    def add(self, left, right):
        return left + right

    def full(self):
        raise CheckpointError("disk full", remedy="Free space.")

    def broken(self):
        raise ZeroDivisionError("oops")


@pytest.fixture
def target():
    return Target()


@pytest.fixture
def remote(target):
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(theirs, target))
    thread.start()
    caller = RemoteCaller(ours)
    yield caller
    caller.close()
    thread.join(timeout=5)
    assert not thread.is_alive(), "hanging up ends the server"


async def test_arrays_travel_both_ways(remote: RemoteCaller) -> None:
    assert (await remote.call("add", np.arange(3), 1)).tolist() == [1, 2, 3]


async def test_our_errors_keep_class_message_and_remedy(remote: RemoteCaller) -> None:
    with pytest.raises(CheckpointError, match="disk full") as caught:
        await remote.call("full")
    assert caught.value.remedy == "Free space."


async def test_other_errors_name_call_and_type_and_the_server_lives_on(remote: RemoteCaller) -> None:
    with pytest.raises(TrainError, match=r"broken\(\) failed: ZeroDivisionError: oops"):
        await remote.call("broken")
    assert await remote.call("add", 1, 1) == 2


async def test_a_peer_that_is_gone_is_a_train_error() -> None:
    ours, theirs = socket.socketpair()
    caller = RemoteCaller(ours)
    theirs.close()
    with pytest.raises(TrainError, match="the trainer is gone during save"):
        await caller.call("save")
    caller.close()


async def cancel_while_held(remote: RemoteCaller, target: Target) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(remote.call, "hold")
        assert await to_thread.run_sync(lambda: target.entered.acquire(timeout=20))
        tasks.cancel_scope.cancel()


async def test_a_call_after_a_cancelled_one_gets_its_own_reply(remote: RemoteCaller, target: Target) -> None:
    for round_ in range(5):
        await cancel_while_held(remote, target)
        target.gate.release()
        with anyio.fail_after(20):
            assert await remote.call("add", round_, 1) == round_ + 1


async def test_a_call_after_one_that_was_cancelled_half_sent_gets_its_own_reply(
    remote: RemoteCaller, target: Target
) -> None:
    await cancel_while_held(remote, target)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(remote.call, "size", bytes(8_000_000))
        await anyio.wait_all_tasks_blocked()
        while not remote._outgoing:  # the first bytes fill the socket, which no one reads while the trainer is held
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    target.gate.release()
    with anyio.fail_after(20):
        assert await remote.call("size", bytes(9)) == 9


async def test_a_peer_that_dies_during_a_call_is_noticed_at_once() -> None:
    ours, theirs = socket.socketpair()
    caller = RemoteCaller(ours)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:

            async def save() -> None:
                with pytest.raises(TrainError, match="the trainer is gone during save"):
                    await caller.call("save")

            tasks.start_soon(save)
            await to_thread.run_sync(theirs.recv, 1)
            theirs.close()
    caller.close()


async def test_hanging_up_ends_a_call_that_waits_and_refuses_later_ones(remote: RemoteCaller, target: Target) -> None:
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:

            async def hold() -> None:
                with pytest.raises(TrainError, match="the trainer is gone during hold"):
                    await remote.call("hold")

            tasks.start_soon(hold)
            assert await to_thread.run_sync(lambda: target.entered.acquire(timeout=20))
            remote.close()
        with pytest.raises(TrainError, match="the trainer is gone during add"):
            await remote.call("add", 1, 1)
    target.gate.release()


CANCELLED = """
import anyio, socket
from miles_core.app.rpc import RemoteCaller

async def main():
    ours, theirs = socket.socketpair()
    caller = RemoteCaller(ours)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.call, "save")
        await anyio.wait_readable(theirs)
        tasks.cancel_scope.cancel()
    caller.close()
    return theirs  # alive to the end, so that no one is woken by its closing

kept = anyio.run(main)
"""


def test_a_cancelled_call_keeps_no_process_alive() -> None:
    subprocess.run([sys.executable, "-W", "error::DeprecationWarning", "-c", CANCELLED], check=True, timeout=30)
