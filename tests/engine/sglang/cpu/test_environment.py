from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from miles_core.engine.sglang.cpu import environment
from miles_core.engine.sglang.cpu.environment import cpu_environment, environment_folder, mark_complete

ROOT = Path(__file__).parents[4]


def test_it_is_none_until_its_set_up_came_to_its_end(folder: Path) -> None:
    assert cpu_environment() is None
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    assert cpu_environment() is None
    mark_complete(folder)
    assert cpu_environment() == folder / "bin" / "python"


def test_another_pin_is_another_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = environment.REQUIREMENTS.read_text("utf-8")
    changed = tmp_path / "requirements.txt"
    changed.write_text(pins.replace("sglang==0.5.23", "sglang==0.5.24"), "utf-8")
    monkeypatch.setattr(environment, "REQUIREMENTS", changed)
    assert environment_folder() != folder
    changed.write_text(pins, "utf-8")
    assert environment_folder() == folder


def test_every_package_has_one_exact_version_and_torch_has_that_of_the_trainer() -> None:
    lines = environment.REQUIREMENTS.read_text("utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+]*", pin)] == []
    trainer = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert {pin for pin in pins if pin.startswith("torch==")} == {pin for pin in trainer if pin.startswith("torch==")}


def test_setting_it_up_needs_nothing_but_the_standard_library() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import miles_core.engine.sglang.cpu.install"
    bare = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert (bare.returncode, bare.stderr) == (0, "")


def test_the_server_is_told_what_a_cpu_needs_by_options_that_a_user_can_give_again() -> None:
    assert environment.SERVER_FILE.is_file()
    assert all(re.fullmatch(r"--[a-z-]+(=[a-z_0-9]+)?", option) for option in environment.SERVER_ARGUMENTS)
