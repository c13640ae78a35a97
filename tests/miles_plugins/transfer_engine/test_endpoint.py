from __future__ import annotations

import os

import pytest

from miles_core.api import WeightSyncError
from miles_plugins.transports.transfer_engine import endpoint
from miles_plugins.transports.transfer_engine.endpoint import Endpoint, patience
from miles_plugins.transports.transfer_engine.wire import Wire

PROGRESS = "MC_TCP_PROGRESS_TIMEOUT_SEC"


@pytest.mark.parametrize(
    ("option", "environment", "seconds", "told"),
    [(None, None, 10, "10"), (None, "60", 60, "60"), (2.5, "60", 2.5, "3")],
)
def test_the_option_wins_over_the_environment_and_mooncake_gets_whole_seconds(
    monkeypatch, option, environment, seconds, told
):
    monkeypatch.setenv(PROGRESS, environment or "")
    assert patience(option) == seconds
    assert os.environ[PROGRESS] == told


@pytest.mark.parametrize("text", ["soon", "0", "-1"])
def test_an_environment_that_says_no_number_is_refused(monkeypatch, text):
    monkeypatch.setenv(PROGRESS, text)
    with pytest.raises(WeightSyncError, match=f"{PROGRESS} must be a number of seconds; got '{text}'"):
        patience(None)


class Engine:
    """Remembers what it was initialized with, and fails the write with this number."""

    status, fails = 0, None

    def initialize(self, *arguments):
        self.arguments, self.forced = arguments, os.environ.get("MC_FORCE_TCP")
        self.written = []
        return self.status

    def get_rpc_port(self):
        return 1234

    def batch_transfer_sync_write(self, session, sources, targets, lengths):
        self.written.append((session, *sources))
        return -1 if len(self.written) == self.fails else 0


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(endpoint, "transfer_engine", one := Engine)
    monkeypatch.setattr(endpoint, "BATCH", 3)
    monkeypatch.delenv("MC_FORCE_TCP", raising=False)
    return one


@pytest.mark.parametrize(
    ("wire", "arguments", "forced"),
    [
        (Wire("tcp"), ("10.0.0.1", "P2PHANDSHAKE", "tcp", ""), "1"),
        (Wire("rdma", ("a", "b")), ("10.0.0.1", "P2PHANDSHAKE", "rdma", "a,b"), None),
    ],
)
def test_tcp_is_forced_while_the_engine_opens_and_only_then(engine, wire, arguments, forced):
    end = Endpoint(wire, "10.0.0.1")
    assert (end._engine.arguments, end._engine.forced) == (arguments, forced)
    assert "MC_FORCE_TCP" not in os.environ
    assert end.session == "10.0.0.1:1234"


def test_writes_go_in_batches_and_end_with_the_one_that_fails(engine):
    end = Endpoint(Wire("tcp"), "10.0.0.1")
    assert end.write("peer", range(7), range(7), [1] * 7) == 7
    assert end._engine.written == [("peer", 0, 1, 2), ("peer", 3, 4, 5), ("peer", 6)]
    end._engine.written, end._engine.fails = [], 2
    assert end.write("peer", range(7), range(7), [1] * 7) == 3
    assert len(end._engine.written) == 2


def test_ports_that_cannot_be_opened_are_an_error(engine, monkeypatch):
    monkeypatch.setattr(engine, "status", -1)
    with pytest.raises(WeightSyncError, match=r"at 10.0.0.1 for RDMA over a \(status -1\)"):
        Endpoint(Wire("rdma", ("a",)), "10.0.0.1")
