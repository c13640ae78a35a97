"""Child processes: ready, refused, dead, and never left behind."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import anyio
import psutil
import pytest

from miles_core.app.processes import child
from miles_core.app.supervise import supervised
from miles_core.errors import EngineError, RolloutError

pytestmark = pytest.mark.anyio

READY = """
    from miles_core.app.child import child_process, report
    import subprocess, sys, time
    with child_process():
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        report({"url": "http://here", "grandchild": grandchild.pid})
        time.sleep(600)
"""


def start(script: str, tmp_path: Path, seconds: float = 20.0, **options):
    argv = [sys.executable, "-c", textwrap.dedent(script)]
    return child("engine-0", argv, log=tmp_path / "logs" / "e.log", error=EngineError, start_timeout=seconds, **options)


async def test_a_ready_child_reports_and_its_whole_group_is_ended(tmp_path: Path) -> None:
    async with start(READY, tmp_path) as running:
        assert running.ready["url"] == "http://here"
        family = [psutil.Process(running.process.pid), psutil.Process(running.ready["grandchild"])]
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


async def test_what_a_child_says_of_its_start_is_heard_line_by_line(tmp_path: Path) -> None:
    script = """
        from miles_core.app.child import child_process, report, report_progress
        import os, time
        with child_process():
            report_progress("importing")
            report_progress("loading weights: 50 %")
            os.write(int(os.environ["MILES_READY_FD"]), b'{"progress": "warming')
            time.sleep(0.05)
            os.write(int(os.environ["MILES_READY_FD"]), b' up"}\\n')
            report({"url": "http://here"})
            report_progress("too late")
            time.sleep(600)
    """
    heard: list[str] = []
    async with start(script, tmp_path, on_progress=heard.append) as running:
        assert running.ready == {"url": "http://here"}
    assert heard == ["importing", "loading weights: 50 %", "warming up"]


async def test_progress_does_not_prolong_the_time_that_a_start_may_take(tmp_path: Path) -> None:
    script = """
        from miles_core.app.child import report_progress
        import time
        while True:
            report_progress("loading weights")
            time.sleep(0.01)
    """
    with pytest.raises(EngineError, match="not ready after 0.5 s"):
        async with start(script, tmp_path, seconds=0.5):
            pass


async def test_a_child_that_cannot_start_hands_its_error_over(tmp_path: Path) -> None:
    script = """
        from miles_core.app.child import child_process
        from miles_core.errors import EngineError
        with child_process():
            raise EngineError("port 9 is in use", remedy="Choose another.")
    """
    with pytest.raises(EngineError, match="engine-0: port 9 is in use") as caught:
        async with start(script, tmp_path):
            pass
    assert caught.value.remedy == "Choose another."


async def test_a_child_that_dies_at_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"died \(exit code 3\)(.|\n)*no such device"):
        async with start("import sys; print('no such device'); sys.exit(3)", tmp_path):
            pass


async def test_a_child_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="not ready after 0.5 s"):
        async with start("import time; time.sleep(600)", tmp_path, seconds=0.5):
            pass


async def test_a_command_that_does_not_exist_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot start the x process"):
        async with child("x", ["/no/such/program"], log=tmp_path / "x.log", error=EngineError, start_timeout=1):
            pass


async def test_a_death_is_the_cause_even_when_its_consequence_is_seen_first(tmp_path: Path) -> None:
    async with start(READY, tmp_path) as running:

        async def work() -> None:
            running.process.kill()
            raise RolloutError("all trajectories failed: connection refused")

        with pytest.raises(EngineError, match="signal SIGKILL") as caught:
            await supervised([running], work)
        assert isinstance(caught.value.__cause__, RolloutError)


async def test_a_death_ends_work_that_waits_for_ever(tmp_path: Path) -> None:
    async with start(READY, tmp_path) as running:

        async def work() -> None:
            running.process.terminate()
            await anyio.sleep_forever()

        with pytest.raises(EngineError, match="signal SIGTERM"):
            await supervised([running], work)


async def test_finished_work_is_returned(tmp_path: Path) -> None:
    async with start(READY, tmp_path) as running:

        async def work() -> int:
            await anyio.lowlevel.checkpoint()
            return 7

        assert await supervised([running], work) == 7


SHARED = Path("/dev/shm")
SENDER = """
    import multiprocessing, sys, time
    from miles_core.api import Bucket, PluginContext
    from miles_core.app.child import child_process, report
    from miles_plugins.transports.memory import Memory
    with child_process():
        transport = Memory(None, PluginContext())
        sent = [transport.send(Bucket(0, (), 100), memoryview(bytes(100)))["segment"] for _ in range(20)]
        # a worker that outlives its parent and keeps the resource tracker busy
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
        report({"segments": sent})
        time.sleep(600)
"""


@pytest.mark.parametrize("killed", [True, False])
async def test_a_child_that_ends_while_it_holds_segments_leaves_none(tmp_path: Path, killed: bool) -> None:
    async with start(SENDER, tmp_path) as running:
        assert all((SHARED / name).exists() for name in running.ready["segments"])
        if killed:
            running.process.kill()
            await running.process.wait()
    assert not [name for name in running.ready["segments"] if (SHARED / name).exists()]


async def test_a_child_that_ignores_every_request_to_end_is_killed_with_its_group(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("miles_core.app.processes.STOP_SECONDS", 0.2)
    script = """
        from miles_core.app.child import report
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        grandchild = os.fork()
        if grandchild:
            report({"grandchild": grandchild})
        time.sleep(600)
    """
    with anyio.fail_after(20):
        async with start(script, tmp_path) as running:
            family = [psutil.Process(running.process.pid), psutil.Process(running.ready["grandchild"])]
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
