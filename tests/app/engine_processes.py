"""Small processes that start, progress and die as engines do, and what a fleet needs beside them."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from miles_core.app.fleet import Fleet
from miles_core.app.processes import child
from miles_core.errors import EngineError

ENGINE = """
    import os, pathlib, sys, time
    from miles_core.app.child import child_process, report, report_progress

    def wait_for(name):
        while not (folder / name).exists():
            time.sleep(0.01)

    name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    with child_process():
        (folder / f"{name}.{os.getpid()}").touch()
        {before}
        report({"url": f"http://{name}:{os.getpid()}", "foreign_weights": {foreign}})
        time.sleep(600)
"""


class Router:
    """The fleet's gate: who gets requests."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.events: list[str] = []

    async def add(self, url: str) -> None:
        self.urls.append(url)
        self.events.append(f"add {_name(url)}")

    async def remove(self, url: str, *, drop: bool = False) -> None:
        self.urls.remove(url)
        self.events.append(f"{'drop' if drop else 'remove'} {_name(url)}")


class Inspector:
    """Accepts every engine; one answers while its process lives and is not stopped."""

    refused: str | None = None

    async def check(self, url: str) -> None:
        if self.refused is not None:
            raise EngineError(self.refused)

    async def answers(self, url: str) -> bool:
        pid = int(url.rpartition(":")[2])
        return _is_alive(pid) and psutil.Process(pid).status() != psutil.STATUS_STOPPED


class Engines:
    """Makes fleets of such processes, and knows all that ever ran."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.router = Router()
        self.inspector = Inspector()
        self.lost: list[tuple[str, str]] = []

    def fleet(
        self,
        scripts: Sequence[str] = ("",),
        *,
        foreign: bool = False,
        version: int = 0,
        max_restarts: int = 2,
        patience: float = 30.0,
    ) -> Fleet:
        launches = [(f"engine-{i}", self._launch(f"engine-{i}", script, foreign)) for i, script in enumerate(scripts)]
        return Fleet(
            launches,
            self.inspector,
            version=version,
            max_restarts=max_restarts,
            patience=patience,
            on_lost=self.on_lost,
        )

    async def on_lost(self, url: str, error: str) -> None:
        self.lost.append((url, error))

    def _launch(self, name: str, before: str, foreign: bool):
        script = textwrap.dedent(ENGINE).replace("{before}", before).replace("{foreign}", str(foreign))
        argv = [sys.executable, "-c", script, name, str(self.folder)]
        log = self.folder / "logs" / f"{name}.log"
        return lambda on_progress: child(
            name, argv, log=log, error=EngineError, start_timeout=60.0, on_progress=on_progress
        )

    def pids(self, name: str) -> list[int]:
        """Every life of an engine, in order."""
        files = sorted(self.folder.glob(f"{name}.*"), key=lambda file: file.stat().st_mtime_ns)
        return [int(file.suffix[1:]) for file in files]

    def kill(self, name: str) -> None:
        """Kill an engine; it is dead, and nobody has noticed, when this returns."""
        pid = self.pids(name)[-1]
        os.kill(pid, signal.SIGKILL)
        while _is_alive(pid):
            time.sleep(0.001)

    def stop(self, name: str) -> int:
        """Stop an engine, which lives and gives no answer then; its process id."""
        pid = self.pids(name)[-1]
        os.kill(pid, signal.SIGSTOP)
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)
        return pid

    def alive(self) -> list[psutil.Process]:
        found = []
        for file in self.folder.glob("engine-*.*"):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(file.suffix[1:])))
        return psutil.wait_procs(found, timeout=10)[1]


def _name(url: str) -> str:
    return url.removeprefix("http://").partition(":")[0]


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
