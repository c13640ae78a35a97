"""``miles doctor``: rows that say what is there, what is not, and what to do; nothing hangs or crashes it."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from miles_core.app.doctor import Finding, examine, machine, mooncake, packages
from miles_core.app.doctor import examine as examine_function
from miles_core.app.doctor.probe import probe
from miles_core.cli import doctor as command
from miles_core.plugins.hub import Hub


class StubHub:
    """A hub with given plugins and problems."""

    def __init__(self, *refs: tuple[str, str], problems: tuple[str, ...] = ()) -> None:
        self._refs = [SimpleNamespace(kind=kind, name=name) for kind, name in refs]
        self.problems = problems

    def refs(self, kind: str | None = None) -> list[Any]:
        return [ref for ref in self._refs if kind in (None, ref.kind)]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module that a child process can import, and gives its name."""

    def write(text: str) -> str:
        (tmp_path / "odd_package.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return "odd_package"

    return write


def rows(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    return examine_function()


def test_the_real_machine_has_everything_that_the_core_needs(findings: list[Finding]) -> None:
    found = rows(findings)
    assert [finding for finding in findings if finding.is_fatal] == []
    assert {name for name, finding in found.items() if finding.required} >= {
        "python", "dependencies", "torch", "transformers", "loopback ports", "disk of runs/",
    }  # fmt: skip
    assert metadata.version("torch") in found["torch"].found
    assert "CPU threads" in found["torch"].found
    assert found["/dev/shm"].found.endswith("GiB free")
    assert "cores" in found["cores, memory"].found


def test_whatever_is_not_well_has_a_remedy(findings: list[Finding]) -> None:
    assert [finding.name for finding in findings if finding.state != "ok" and not finding.remedy] == []
    names = {"gpu", "sglang", "megatron-core", "ray", "pyarrow", "datasets", "tensorboard", "wandb", "mlflow-skinny"}
    assert names | {"mooncake", "libibverbs", "rdma devices", "open files", "disk of cache"} <= rows(findings).keys()


@pytest.mark.parametrize("fatal", [False, True])
def test_the_command_prints_a_table_and_fails_only_for_what_every_run_needs(
    fatal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [
        Finding("torch", "problem" if fatal else "ok", "2.0", "Install it.", required=True),
        Finding("ray", "problem", "its import fails", "Run `pip install ray`."),
        Finding("sglang", "missing", "not installed"),
    ]
    monkeypatch.setattr(command, "examine", lambda: made)
    assert command.doctor() == int(fatal)
    output = capsys.readouterr().out
    assert "problem  ray     its import fails\n                 -> Run `pip install ray`.\n" in output
    assert ("no run works before this is repaired: torch" in output) == fatal
    assert command.doctor(json=True) == int(fatal)
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is not fatal
    assert report["findings"][1] == {
        "name": "ray", "state": "problem", "found": "its import fails", "remedy": "Run `pip install ray`.",
        "required": False,
    }  # fmt: skip


def test_a_package_that_hangs_is_given_up_on_with_all_that_it_started(module: Callable[[str], str]) -> None:
    name = module("import subprocess\nsubprocess.Popen(['sleep', '60'])\nimport threading\nthreading.Event().wait()\n")
    begun = time.monotonic()
    assert probe(name, timeout=1.0).failure == "its import takes longer than 1 s"
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("raise RuntimeError('needs a GPU')", "its import fails: RuntimeError: needs a GPU"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "its import fails: the process died of signal SIG"),
        ("import sys\nsys.exit(3)", "its import fails: the process ended with exit code 3"),
        ("import sys\nsys.exit(0)", "its import fails: the process ended with exit code 0"),
        ("import absent_package_xyz", "its import fails: ModuleNotFoundError: No module named 'absent_package_xyz'"),
    ],
)
def test_a_package_that_fails_or_crashes_is_told_with_its_cause(
    module: Callable[[str], str], text: str, failure: str
) -> None:
    assert probe(module(text)).failure.startswith(failure)


def test_what_a_package_prints_does_not_hide_its_facts(module: Callable[[str], str]) -> None:
    name = module("print('hello', end='')\nvalue = 7\nimport sys\nprint('noise' * 50000, file=sys.stderr)\n")
    assert probe(name, "facts.update(value=found.value)").facts == {"value": 7}


def test_a_check_that_fails_itself_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Finding]:
        raise PermissionError("/sys is closed")

    for name in ("torch", "transformers", "sglang", "optional"):
        monkeypatch.setattr(packages, name, lambda *arguments: [])
    monkeypatch.setattr(packages, "python", broken)
    found = rows(examine(Hub.discover()))
    assert "PermissionError: /sys is closed" in found["broken"].found
    assert "loopback ports" in found


def test_sglang_that_is_nowhere_is_not_needed_and_can_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packages, "version_of", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here, on_cpu = packages.sglang()
    assert (here.state, on_cpu.state) == ("missing", "missing")
    assert "engine.python" in here.remedy
    assert "`make sglang-cpu`" in on_cpu.remedy


def test_a_broken_sglang_is_a_problem_and_not_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "version_of", lambda name: "0.5.23")
    row = packages.sglang()[0]
    assert (row.state, row.is_fatal) == ("problem", False)
    assert row.found.startswith("0.5.23; its import fails: ModuleNotFoundError")


def test_a_cpu_environment_that_lost_its_sglang_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "cpu_environment", lambda: Path(sys.executable))
    row = packages.sglang()[1]
    assert (row.name, row.state) == ("sglang on cpu", "problem")
    assert "has no SGLang" in row.found
    assert "`make sglang-cpu`" in row.remedy


def test_a_dependency_of_the_wrong_version_is_fatal_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = packages.version_of
    monkeypatch.setattr(packages, "version_of", lambda name: "1.0" if name == "numpy" else real(name))
    row = rows(packages.python())["dependencies"]
    assert row.is_fatal
    assert row.found == "needs numpy>=2 (1.0)"


def test_an_optional_package_says_how_to_get_it_or_that_nothing_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, tensorboard = (
        next(each for each in packages.OPTIONAL if each.distribution == name) for name in ("ray", "tensorboard")
    )
    monkeypatch.setattr(packages, "version_of", lambda name: None)
    hub = StubHub(("trackers", "tensorboard"))
    assert packages.optional(tensorboard, hub)[0].remedy == "Run `pip install 'miles-hub[trackers]'`."
    assert packages.optional(ray, hub)[0].remedy.startswith("Not needed, since no installed plugin uses it.")


def test_both_mooncake_wheels_at_once_are_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mooncake, "version_of", lambda name: "0.3.13")
    found = rows(mooncake.mooncake(StubHub(), tmp_path))
    assert found["mooncake"].state == "problem"
    assert "pip uninstall" in found["mooncake"].remedy
    assert found["rdma devices"].state == "missing"
    (tmp_path / "mlx5_0").mkdir()
    assert rows(mooncake.mooncake(StubHub(), tmp_path))["rdma devices"].found == "mlx5_0"


def test_broken_plugins_are_rows_but_do_not_fail_the_machine() -> None:
    found = packages.plugins(StubHub(("filters", "one"), problems=("plugin x cannot be read",)))
    assert [(row.state, row.found) for row in found] == [("ok", "1 found"), ("problem", "plugin x cannot be read")]
    assert not any(row.is_fatal for row in found)


def test_little_memory_disk_or_shared_memory_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 1000000 kB\n")
    assert machine.cores_and_memory(tmp_path / "meminfo").state == "problem"
    assert machine.cores_and_memory(tmp_path / "absent").state == "ok"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    low = [machine.disk("disk", tmp_path / "not" / "yet"), machine.shared_memory(tmp_path)]
    assert [row.state for row in low] == ["problem", "problem"]
    assert str(tmp_path) in low[0].found
    assert machine.shared_memory(tmp_path / "absent").state == "missing"


def test_a_machine_without_loopback_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: tuple[str, int]) -> socket.socket:
        raise PermissionError("not permitted")

    monkeypatch.setattr(socket, "create_server", refuse)
    assert machine.loopback().is_fatal


def test_few_open_files_come_with_the_command_that_raises_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (1024, 1 << 20))
    assert machine.open_files().remedy == "Run `ulimit -n 4096` before miles."
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (machine.resource.RLIM_INFINITY, -1))
    assert machine.open_files().state == "ok"


def test_the_command_imports_no_torch() -> None:
    result = probe("miles_core.cli.doctor", "facts.update(torch='torch' in sys.modules)")
    assert result.facts == {"torch": False}, sys.path
