"""The parent's side of child processes: start, wait until ready, watch, and leave none behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from miles_core.app.child import READY_FD

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import Process

    from miles_core.errors import MilesError

LOG_TAIL_LINES = 12
STOP_SECONDS = 5.0


@dataclass(eq=False)
class Child:
    """One running child; ``ready`` is what it reported, ``error`` the class that its death raises.

    ``lifeline`` is our end of its standard input, which all that it starts inherits.
    """

    name: str
    process: Process
    log: Path
    error: type[MilesError]
    lifeline: socket.socket
    ready: dict[str, Any] = field(default_factory=dict)
    stopping: bool = False

    async def watch(self) -> None:
        """Wait for the child's end, which is an error unless it was asked for.

        Raises:
            MilesError: of class ``error``, with the exit code and the end of the child's log.
        """
        death = await self.ended()
        if not self.stopping:
            raise death

    async def ended(self) -> MilesError:
        """Wait for the child's end; the error that says how it died."""
        return self.death(await self.process.wait())

    def death(self, code: int) -> MilesError:
        """The error that says how the child died."""
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return self.error(
            f"the {self.name} process died ({how}){_tail(self.log)}",
            remedy=f"Read {self.log}.",
        )


@asynccontextmanager
async def child(
    name: str,
    argv: Sequence[str],
    *,
    log: Path,
    error: type[MilesError],
    start_timeout: float,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    on_progress: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Child]:
    """Start a child, wait until it reports, and end its whole process group on exit.

    ``start_timeout`` is in seconds; ``on_progress`` gets what the child says of its start. The child is in a process
    group of its own, so Ctrl-C reaches only the driver, and its standard input is a socket that ends with the driver.

    Raises:
        MilesError: of class ``error`` if the child dies, reports an error, or is not ready in time.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    read_fd, write_fd = os.pipe()
    lifeline, stdin = socket.socketpair()
    with stdin, log.open("ab") as sink:
        try:
            process = await anyio.open_process(
                list(argv),
                stdin=stdin.fileno(),
                stdout=sink,
                stderr=subprocess.STDOUT,
                # a bar that is redrawn hides what matters in a log
                env={**os.environ, "TQDM_DISABLE": "1", **(environment or {}), READY_FD: str(write_fd)},
                pass_fds=(write_fd, *pass_fds),
                start_new_session=True,
            )
        except OSError as cause:
            os.close(read_fd)
            lifeline.close()
            raise error(f"cannot start the {name} process: {cause}") from cause
        finally:
            os.close(write_fd)
    running = Child(name, process, log, error, lifeline)
    try:
        running.ready = await _wait_ready(running, read_fd, start_timeout, on_progress)
        yield running
    finally:
        await _stop(running)


async def _wait_ready(
    running: Child, read_fd: int, seconds: float, on_progress: Callable[[str], None]
) -> dict[str, Any]:
    """The report that follows any number of progress lines."""
    buffer = b""
    try:
        with anyio.fail_after(seconds):
            while True:
                line, newline, rest = buffer.partition(b"\n")
                if not newline:
                    buffer += await _read(running, read_fd)
                    continue
                buffer = rest
                message: dict[str, Any] = json.loads(line)
                if "progress" not in message:
                    break
                on_progress(str(message["progress"]))
    except TimeoutError:
        raise running.error(
            f"the {running.name} process is not ready after {seconds:g} s{_tail(running.log)}",
            remedy=f"Read {running.log}, or raise start_timeout.",
        ) from None
    finally:
        os.close(read_fd)
    if "error" in message:
        raise running.error(f"{running.name}: {message['error']}", remedy=message.get("remedy"))
    return message


async def _read(running: Child, read_fd: int) -> bytes:
    await anyio.wait_readable(read_fd)
    chunk = os.read(read_fd, 4096)
    if not chunk:
        raise await running.ended()
    return chunk


async def _stop(running: Child) -> None:
    """Ask the child to end by closing its input, then end its group; nothing of it stays."""
    running.stopping = True
    with anyio.CancelScope(shield=True), running.lifeline:
        running.lifeline.shutdown(socket.SHUT_WR)
        with anyio.move_on_after(STOP_SECONDS):
            await running.process.wait()
        with suppress(ProcessLookupError):
            running.process.kill()
        await running.process.wait()
        await _end_group(running)


async def _end_group(running: Child) -> None:
    """End what the child started, then let Python's resource tracker remove the shared memory that they left.

    A tracker ignores SIGTERM and works when the processes that it serves are gone; SIGKILL would come before that.
    """
    with suppress(ProcessLookupError):
        os.killpg(running.process.pid, signal.SIGTERM)
        with anyio.move_on_after(STOP_SECONDS):
            await _hung_up(running.lifeline)
        os.killpg(running.process.pid, signal.SIGKILL)


async def _hung_up(lifeline: socket.socket) -> None:
    """Wait until no process holds the other end."""
    lifeline.setblocking(False)
    with suppress(ConnectionResetError):
        await anyio.wait_readable(lifeline)
        while lifeline.recv(4096):
            await anyio.wait_readable(lifeline)


def _tail(log: Path) -> str:
    try:
        lines = log.read_text("utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
    except OSError:
        return ""
    return "; the end of its log:\n    " + "\n    ".join(lines) if lines else ""
