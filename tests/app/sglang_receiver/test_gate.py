"""Forward passes and writes exclude each other."""

from __future__ import annotations

import threading

import pytest

from miles_core.app.sglang_receiver.gate import Gate
from miles_core.errors import WeightSyncError


def test_a_writer_waits_for_the_end_of_a_forward_pass() -> None:
    gate = Gate()
    order: list[str] = []
    started = threading.Event()

    def write() -> None:
        started.set()
        with gate.exclusive():
            order.append("write")

    writer = threading.Thread(target=write)
    with gate.forward():
        writer.start()
        started.wait()
        order.append("forward")
    writer.join()
    assert order == ["forward", "write"]


def test_a_forward_pass_waits_for_the_end_of_a_write_and_sees_its_reason() -> None:
    gate = Gate()
    refused: list[str] = []
    started = threading.Event()

    def run() -> None:
        started.set()
        try:
            with gate.forward():
                refused.append("it ran")
        except WeightSyncError as error:
            refused.append(error.message)

    passing = threading.Thread(target=run)
    with gate.exclusive():
        passing.start()
        started.wait()
        gate.reason = "weights are torn"
    passing.join()
    assert len(refused) == 1
    assert "weights are torn" in refused[0]


def test_a_refused_pass_leaves_the_gate_open_for_others() -> None:
    gate = Gate()
    gate.reason = "updating weights to version 2"
    with pytest.raises(WeightSyncError), gate.forward():
        pass
    gate.reason = None
    with gate.forward():
        pass
