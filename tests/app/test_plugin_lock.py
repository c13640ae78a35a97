"""A process finds its plugins by itself and is held against the driver's lock."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from miles_core.app.plugin_lock import require_same_plugins
from miles_core.errors import PluginError
from miles_core.plugins import Hub
from miles_core.plugins.lock import lock_of


class Machine:
    """A folder with one distribution, a filter and a hook module, and a run whose lock a driver wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self.install("1.0")

    def install(self, version: str, *, target: str = "kit:hard", module: str = "kit_hooks") -> None:
        info = self.folder / "kit-0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kit\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[miles.filters]\nhard = {target}\n[miles]\nwatch = {module}\n")
        (self.folder / f"{module}.py").write_text("def miles_run_started(): pass\n")

    @property
    def hub(self) -> Hub:
        return Hub.discover(path=[str(self.folder)])

    def drive(self) -> None:
        lock = lock_of(self.hub, [("filters", "hard")])
        (self.folder / "plugins.json").write_text(json.dumps(lock.to_json()))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch) -> Machine:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("kit_hooks", "other_hooks"):  # imported from this folder, and gone after the test
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.delitem(sys.modules, name)
    return Machine(tmp_path)


def test_the_same_plugins_are_fine_and_without_a_lock_nothing_is_compared(machine: Machine) -> None:
    require_same_plugins(machine.hub, machine.config, "engine")
    machine.drive()
    require_same_plugins(machine.hub, machine.config, "engine")


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (
            {"version": "2.0"},
            [
                "plugin filters hard: kit 1.0 (kit:hard) -> kit 2.0 (kit:hard)",
                "plugin hooks kit/watch: kit 1.0 (kit_hooks) -> kit 2.0 (kit_hooks)",
            ],
        ),
        ({"version": "1.0", "target": "kit:harder"}, ["(kit:hard) -> kit 1.0 (kit:harder)"]),
        ({"version": "1.0", "module": "other_hooks"}, ["(kit_hooks) -> kit 1.0 (other_hooks)"]),
    ],
)
def test_another_version_target_or_hook_module_names_both_sides_and_the_remedy(machine, change, lines) -> None:
    machine.drive()
    machine.install(**change)
    with pytest.raises(PluginError, match="the trainer process finds other plugins than the driver") as caught:
        require_same_plugins(machine.hub, machine.config, "trainer")
    assert all(line in caught.value.message for line in lines)
    assert "same Python environment" in caught.value.remedy


def test_a_plugin_that_only_the_driver_finds_is_named(machine: Machine) -> None:
    machine.drive()
    (machine.folder / "kit-0.dist-info" / "entry_points.txt").write_text("[miles]\nwatch = kit_hooks\n")
    with pytest.raises(PluginError, match=r"the router process lacks a plugin of the driver: .*'hard'"):
        require_same_plugins(machine.hub, machine.config, "router")


def test_a_hook_module_that_only_the_child_finds_is_a_difference_too(machine: Machine) -> None:
    machine.drive()
    lock = json.loads((machine.folder / "plugins.json").read_text())
    (machine.folder / "plugins.json").write_text(json.dumps([row for row in lock if row["kind"] != "hooks"]))
    with pytest.raises(PluginError, match=r"plugin hooks kit/watch: not used -> kit 1.0 \(kit_hooks\)"):
        require_same_plugins(machine.hub, machine.config, "engine")
