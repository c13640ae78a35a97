"""The RPC between driver and trainer: values, errors, and a peer that goes away."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

from miles_core.app.rpc import RemoteCaller, serve
from miles_core.errors import CheckpointError, TrainError

pytestmark = pytest.mark.anyio


class Target:
    def add(self, left, right):
        return left + right

    def full(self):
        raise CheckpointError("disk full", remedy="Free space.")

    def broken(self):
        raise ZeroDivisionError("oops")


@pytest.fixture
def remote():
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(theirs, Target()))
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
