"""Every built-in weight transport keeps the rules of its kind."""

# ruff: noqa: RUF012 - class attributes are a suite's settings

from __future__ import annotations

from miles_core.testing import WeightTransportSuite


class TestMemory(WeightTransportSuite):
    plugin = "memory"


class TestDisk(WeightTransportSuite):
    plugin = "disk"
    options = {"dir": "weights"}


class TestDiskDelta(WeightTransportSuite):
    plugin = "disk_delta"


class TestDiskDeltaOverwriting(WeightTransportSuite):
    plugin = "disk_delta"
    options = {"dir": "weights", "encoding": "overwrite"}


class TestMooncake(WeightTransportSuite):
    plugin = "mooncake"
    options = {"host": "127.0.0.1"}


class TestTensor(WeightTransportSuite):
    plugin = "miles_plugins.transports.tensor:Tensor"


class TestDistributed(WeightTransportSuite):
    plugin = "miles_plugins.transports.distributed:Distributed"
