"""Writing in the background: one at a time, errors reach the caller, an orderly end cuts nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from threading import Event, get_ident

import pytest

from miles_core.app.checkpoints import verify
from miles_core.errors import CheckpointError
from miles_core.train.checkpoint import steps_in
from miles_core.train.checkpoint_writer import CheckpointWriter


class Backend:
    """Snapshots that write when ``go`` is set."""

    nbytes = 0

    def __init__(self, log: list[str], write: Callable[[Path], None] = lambda path: None) -> None:
        self.go = Event()
        self.threads: list[int] = []
        self._log = log
        self._write = write

    def snapshot(self) -> Backend:
        self._log.append("copy")
        return self

    def __call__(self, path: Path) -> None:
        self.threads.append(get_ident())
        self.go.wait()
        self._write(path)
        self._log.append("written")


def poll_to_the_end(writer: CheckpointWriter) -> None:
    while writer.poll():
        pass


def fail(path: Path) -> None:
    raise OSError("broken disk")


def test_it_writes_in_another_thread_and_says_so(tmp_path: Path) -> None:
    writer, backend = CheckpointWriter(), Backend([])
    writer.save(tmp_path / "step-1", backend, {"state/run.json": b"{}"})
    assert writer.poll()
    assert not (tmp_path / "step-1").exists()
    backend.go.set()
    writer.wait()
    assert not writer.poll()
    verify(tmp_path / "step-1")
    assert backend.threads[0] != get_ident()


def test_the_next_save_waits_before_it_copies(tmp_path: Path) -> None:
    log: list[str] = []
    writer, backend = CheckpointWriter(), Backend(log)
    backend.go.set()
    for step in range(5):
        writer.save(tmp_path / f"step-{step}", backend, {}, keep=2)
    writer.wait()
    assert log == ["copy", "written"] * 5
    assert list(steps_in(tmp_path)) == [0, 3, 4]


@pytest.mark.parametrize("report", ["save", "wait"])
def test_a_failed_save_is_reported_once_by_the_next_call(tmp_path: Path, report: str) -> None:
    writer, backend = CheckpointWriter(), Backend([], fail)
    backend.go.set()
    writer.save(tmp_path / "step-1", backend, {})
    arguments = (tmp_path / "step-2", Backend([]), {}) if report == "save" else ()
    with pytest.raises(CheckpointError, match="cannot save .*step-1: broken disk"):
        getattr(writer, report)(*arguments)
    writer.wait()
    assert not list(tmp_path.iterdir()), "the save after the failed one was not begun"


def test_poll_reports_a_failed_save(tmp_path: Path) -> None:
    writer, backend = CheckpointWriter(), Backend([], fail)
    writer.save(tmp_path / "step-1", backend, {})
    backend.go.set()
    with pytest.raises(CheckpointError, match="broken disk"):
        poll_to_the_end(writer)
    assert not writer.poll()


def test_a_process_that_ends_in_order_finishes_its_checkpoint(tmp_path: Path) -> None:
    script = """
        import sys, threading
        from pathlib import Path
        from miles_core.train.checkpoint_writer import CheckpointWriter

        class Backend:
            nbytes = 0
            def snapshot(self):
                return self
            def __call__(self, path):
                threading.main_thread().join()
                (path / "model.safetensors").write_bytes(bytes(1 << 20))

        CheckpointWriter().save(Path(sys.argv[1]), Backend(), {"state/run.json": b"{}"})
    """
    path = tmp_path / "step-1"
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(path)], check=True, cwd=root)
    verify(path)
