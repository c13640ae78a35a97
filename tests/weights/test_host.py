"""Two processes share memory if and only if their host ids are equal."""

from __future__ import annotations

import subprocess
import sys

import miles_core.weights.host as host

PROGRAM = "from miles_core.weights.host import host_id; print(host_id())"


def test_another_process_of_this_machine_has_the_same_id() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout.strip()
    assert found == host.host_id() != ""


def test_another_mount_of_shared_memory_or_another_boot_is_another_host(tmp_path, monkeypatch) -> None:
    mine = host.host_id()
    monkeypatch.setattr(host, "_SHARED_MEMORY", tmp_path)
    elsewhere = host.host_id()
    boot = tmp_path / "boot_id"
    boot.write_text("another\n")
    monkeypatch.setattr(host, "_BOOT", boot)
    assert len({mine, elsewhere, host.host_id()}) == 3


def test_where_it_cannot_be_told_it_is_empty(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(host, "_BOOT", tmp_path / "absent")
    assert host.host_id() == ""
