"""Ports and GPUs: what each server of a run gets is its own."""

from __future__ import annotations

import socket

import pytest

from miles_core.engine.sglang.gpus import share
from miles_core.engine.sglang.ports import held_port
from miles_core.errors import ConfigError, EngineError


def test_a_held_port_goes_to_no_one_else_but_can_be_listened_on() -> None:
    with held_port("127.0.0.1", 0) as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)) as listener:
            assert listener.getsockname()[1] == port


def test_a_port_that_is_listened_on_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(EngineError, match=f"cannot listen on 127.0.0.1:{port}"), held_port("127.0.0.1", port):
            pass


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(EngineError, match=r"192\.0\.2\.1"), held_port("192.0.2.1", 0):
        pass


def test_servers_take_their_gpus_one_after_the_other() -> None:
    pool = ["4", "5", "6", "7"]
    assert share(2, None, []) == "0,1"
    assert share(1, None, [(2, None)]) == "2"
    assert share(2, pool, [(2, pool)]) == "6,7"


def test_servers_of_another_pool_take_nothing_from_this_one() -> None:
    assert share(2, ["4", "5"], [(2, ["0", "1"])]) == "4,5"


@pytest.mark.parametrize("other", [["5", "6"], None])
def test_pools_that_overlap_are_refused(other: list[str] | None) -> None:
    with pytest.raises(ConfigError, match="pools that overlap"):
        share(1, ["4", "5"], [(1, other)])


def test_too_few_gpus_are_said_with_both_numbers() -> None:
    pool = ["4", "5", "6"]
    with pytest.raises(ConfigError, match=r"need 4 GPUs.*there are 3: 4, 5, 6"):
        share(2, pool, [(2, pool)])
