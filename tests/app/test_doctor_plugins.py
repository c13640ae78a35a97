"""Loading plugins in child processes, with plugins that do their worst."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from miles_core.app.doctor.plugins import examine_plugins
from miles_core.plugins import Hub
from miles_core.plugins.installed.policy import PluginPolicy

if TYPE_CHECKING:
    from pathlib import Path

MODULES = {
    "good": "print('HELLO', flush=True)\ndef f(item): return True",
    "missing": "import does_not_exist_xyz",
    "exits": "raise SystemExit(3)",
    "vanishes": "import os; os._exit(7)",
    "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs": "import threading; threading.Event().wait()",
    "number": "f = 1",
    "greedy": """
from pydantic import BaseModel


class f:
    stage = "group"

    class Config(BaseModel):
        use: str = ""

    def __init__(self, config, context): ...
    def keep(self, item): ...
""",
    "closes": "import os; os.close(1)\ndef f(item): return True",
    "last": "def f(item): return True",
    "hooks": "def miles_register(registry): registry.add('filters', 'computed', 'doctor_number:f')",
    "idle": "x = 1",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def hub(*names: str, modules: tuple[str, ...] = (), **policy: object) -> Hub:
        info = tmp_path / "acme-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Name: acme\nVersion: 1.5\n")
        lines = [f"{name} = doctor_{name}:f" for name in names]
        hooks = [f"{name} = doctor_{name}" for name in modules]
        (info / "entry_points.txt").write_text("\n".join(["[miles.filters]", *lines, "[miles]", *hooks]) + "\n")
        for name, source in MODULES.items():
            (tmp_path / f"doctor_{name}.py").write_text(source)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        return Hub.discover(PluginPolicy(**policy), path=[str(tmp_path)])  # type: ignore[arg-type]

    return hub


def _failures(findings):
    return [finding.found for finding in findings if finding.state == "problem"]


def test_plugins_that_load_are_one_row_whatever_they_print(hub, capfd):
    (row,) = examine_plugins(hub("closes", "good", "last"))
    assert (row.state, row.found) == ("ok", "3 plugins of 1 distributions, all load")
    assert capfd.readouterr().out == ""
    assert not any(name.startswith("doctor_") for name in sys.modules)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", "ModuleNotFoundError: No module named 'does_not_exist_xyz'"),
        ("exits", "SystemExit"),
        ("vanishes", "ends its process at import, with exit code 7"),
        ("crashes", "kills its process at import: signal SIGSEGV"),
        ("number", "not callable"),
        ("greedy", "declares use, which belongs to the host"),
    ],
)
def test_one_that_fails_is_a_row_and_those_around_it_are_tried(hub, name, words):
    found = examine_plugins(hub("good", name, "last"))
    assert found[0].found == "3 plugins of 1 distributions, 1 do not load"
    (failure,) = _failures(found)
    assert words in failure
    assert f"filter '{name}' (doctor_{name}:f, distribution acme 1.5)" in failure
    assert all(finding.remedy for finding in found if finding.state == "problem")


def test_one_that_hangs_is_a_row_and_the_next_is_tried(hub):
    found = examine_plugins(hub("hangs", "missing"), timeout=0.5)
    first, second = _failures(found)
    assert "takes longer than 0.5 s to import" in first
    assert "does_not_exist_xyz" in second


def test_modules_are_run_and_what_they_add_is_loaded(hub):
    failures = _failures(examine_plugins(hub(modules=("hooks", "idle"))))
    assert "filter 'computed' (doctor_number:f" in failures[0]
    assert "plugin module 'idle' (doctor_idle, distribution acme 1.5): acme/idle implements no hook" in failures[1]


def test_nothing_is_loaded_on_request_or_when_left_out(hub):
    broken = hub("missing")
    assert _failures(examine_plugins(broken, imports=False)) == []


def test_what_is_left_out_is_told_and_is_no_problem(hub):
    found = examine_plugins(hub("missing", third_party=False))
    assert [row.state for row in found] == ["ok", "missing"]
    assert "1 left out: off, because only miles-hub takes part" in found[1].found
