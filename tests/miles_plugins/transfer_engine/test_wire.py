from __future__ import annotations

import json

import pytest

from miles_core.api import WeightSyncError
from miles_plugins.transports.transfer_engine import wire
from miles_plugins.transports.transfer_engine.wire import choose_wire, devices_of, rdma_devices

TOPOLOGY = json.dumps({"cpu:0": [["mlx5_0"], ["mlx5_1"]], "cuda:0": [["mlx5_1"], ["mlx5_0", "mlx5_2"]]})


@pytest.mark.parametrize(
    ("protocol", "devices", "found", "path"),
    [
        ("auto", (), (), "TCP (no RDMA device)"),
        ("auto", (), ("mlx5_0", "mlx5_1"), "RDMA over mlx5_0, mlx5_1"),
        ("rdma", ("mlx5_1",), ("mlx5_0", "mlx5_1"), "RDMA over mlx5_1"),
        ("tcp", (), ("mlx5_0",), "TCP (as configured)"),
    ],
)
def test_the_path_is_what_is_used_and_why(protocol, devices, found, path):
    assert choose_wire(protocol, devices, found).path == path


def test_rdma_without_a_device_is_refused_where_mooncake_would_use_tcp():
    with pytest.raises(WeightSyncError, match="this machine has none, and Mooncake would use TCP"):
        choose_wire("rdma", (), ())


@pytest.mark.parametrize(("found", "present"), [((), "none"), (("mlx5_0",), "mlx5_0")])
def test_a_device_that_is_not_there_is_refused(found, present):
    with pytest.raises(WeightSyncError, match=f"names mlx5_7; RDMA devices here: {present}"):
        choose_wire("auto", ("mlx5_7",), found)


def test_devices_are_those_that_the_kernel_knows_and_mooncake_can_open(tmp_path, monkeypatch):
    class Engine:
        def get_local_topology(self):
            return TOPOLOGY

    monkeypatch.setattr(wire, "transfer_engine", Engine)
    for name in ("mlx5_0", "mlx5_2", "hfi1_0"):
        (tmp_path / name).mkdir()
    assert rdma_devices(tmp_path) == ("mlx5_0", "mlx5_2")
    assert devices_of(TOPOLOGY) == {"mlx5_0", "mlx5_1", "mlx5_2"}


def test_a_machine_without_devices_does_not_even_load_mooncake(tmp_path, monkeypatch):
    monkeypatch.delattr(wire, "transfer_engine")
    assert rdma_devices(tmp_path) == rdma_devices(tmp_path / "absent") == ()
