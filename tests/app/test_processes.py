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


def start(script: str, tmp_path: Path, seconds: float = 20.0):
    argv = [sys.executable, "-c", textwrap.dedent(script)]
    return child("engine-0", argv, log=tmp_path / "logs" / "e.log", error=EngineError, start_timeout=seconds)


async def test_a_ready_child_reports_and_its_whole_group_is_ended(tmp_path: Path) -> None:
    async with start(READY, tmp_path) as running:
        assert running.ready["url"] == "http://here"
        family = [psutil.Process(running.process.pid), psutil.Process(running.ready["grandchild"])]
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


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
