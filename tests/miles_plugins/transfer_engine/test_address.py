from __future__ import annotations

import socket

from miles_plugins.transports.transfer_engine.address import routed_address


def test_a_peer_on_loopback_is_reached_from_loopback():
    assert routed_address("127.0.0.1") == "127.0.0.1"


def test_the_default_is_an_address_that_this_machine_listens_at():
    with socket.create_server((routed_address(), 0)) as listener:
        socket.create_connection(listener.getsockname()).close()


def test_a_peer_that_no_route_leads_to_leaves_loopback():
    assert routed_address("no such host.invalid") == "127.0.0.1"
