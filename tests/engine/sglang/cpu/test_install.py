from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from miles_core.engine.sglang.cpu import install
from miles_core.engine.sglang.cpu.environment import cpu_environment, mark_complete
from miles_core.engine.sglang.cpu.lock import locked
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Plan = Callable[..., None]


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _venv(folder: Path) -> tuple[str, list[str]]:
    return "virtual environment", [sys.executable, "-m", "venv", "--without-pip", str(folder)]


def test_it_is_set_up_once_and_says_its_steps(folder: Path, plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    plan(_venv(folder), ("second step", _python("")))
    assert install.main() == 0
    said = capsys.readouterr().out
    assert "1/2 virtual environment" in said
    assert "2/2 second step" in said
    python = cpu_environment()
    assert python is not None
    assert subprocess.run([python, "-c", ""], timeout=60).returncode == 0
    plan(("never", _python("raise SystemExit(3)")))
    assert install.main() == 0
    assert "1/1" not in capsys.readouterr().out


def test_what_a_stopped_set_up_left_is_cleared_away(folder: Path, plan: Plan) -> None:
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "half").touch()
    plan(_venv(folder))
    assert install.main() == 0
    assert not (folder / "lib" / "half").exists()


@pytest.mark.parametrize(
    ("last_words", "remedy"),
    [
        ("OSError: [Errno 28] No space left on device", "Free some gigabytes"),
        ("ERROR: No matching distribution found for sglang==0.5.23", "Check the network"),
        ("urllib3: Failed to establish a new connection", "Check the network"),
        ("something else", "Read "),
    ],
)
def test_a_failed_step_says_why_and_what_to_do_and_leaves_it_incomplete(
    folder: Path, plan: Plan, capsys: pytest.CaptureFixture[str], last_words: str, remedy: str
) -> None:
    plan(_venv(folder), ("SGLang", _python(f"raise SystemExit({last_words!r})")))
    assert install.main() == 1
    said = capsys.readouterr().err
    assert "SGLang failed (exit status 1)" in said
    assert last_words in said
    assert f"-> {remedy}" in said
    assert cpu_environment() is None


def test_a_second_set_up_waits_for_the_first_and_uses_what_it_made(
    folder: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(("never", _python("raise SystemExit(3)")))
    is_waiting = threading.Event()
    monkeypatch.setattr(install, "_say", lambda text: "waiting" in text and is_waiting.set())
    codes: list[int] = []
    second = threading.Thread(target=lambda: codes.append(install.main()))
    with locked(folder.with_suffix(".lock"), seconds=0, waiting=lambda: None):
        second.start()
        assert is_waiting.wait(30)
        folder.mkdir()
        mark_complete(folder)
    second.join(30)
    assert codes == [0]


def test_a_step_that_outlives_its_set_up_keeps_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, seconds=0, waiting=lambda: None) as lock:
        step = subprocess.Popen(_python("input()"), stdin=subprocess.PIPE, pass_fds=(lock,))
    with step:
        with (
            pytest.raises(EngineError, match="another process has held"),
            locked(path, seconds=0, waiting=lambda: None),
        ):
            pass
        step.communicate(b"\n", timeout=60)
    with locked(path, seconds=0, waiting=lambda: None):
        pass


def test_too_little_disk_is_refused_before_anything_is_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "NEEDED_GB", 1e9)
    assert install.main() == 1
    assert "GB free" in capsys.readouterr().err
    assert not folder.exists()


def test_another_system_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.platform, "machine", lambda: "arm64")
    with pytest.raises(EngineError, match="needs Linux on x86-64"):
        install.check_machine(folder)


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(EngineError, match="cannot write"),
        locked(tmp_path / "file" / "lock", seconds=0, waiting=lambda: None),
    ):
        pass
