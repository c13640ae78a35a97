"""SGLang's server as a child process: started, read, and never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from miles_core.engine.sglang.lend import lend, lent_environment
from miles_core.engine.sglang.phases import IMPORTING, phase_of
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT_LINES = 2000
LAST_WORDS_SECONDS = 5.0
# SGLang leaves its sockets and the shared memory that is named after them, however it ends.
_GUARD = """trap "" INT TERM HUP
read -r _
for file in "$1"/*; do rm -f "/dev/shm/sglang_loads_${file##*/}_"*.shm; done
rm -rf "$1"
kill -s KILL 0"""


class Server:
    """A running server; its log goes to our standard output.

    It shares a process group with this process and with a guard. When this process is gone, however it went, the guard
    removes the server's temporary files and ends the group. SGLang's own children die with their parent only once they
    have started, which takes them seconds.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Start it.

        Raises:
            EngineError: if there is no such program.
        """
        scratch = tempfile.mkdtemp(prefix="miles-sglang-")
        self._guard = _guard_group(scratch)
        lent = Path(scratch) / "lent"
        lend(lent)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **lent_environment(lent, os.environ), "TMPDIR": scratch},
            )
        except OSError as error:
            raise EngineError(f"cannot start {command[0]}: {error.strerror}") from None
        self.phase = IMPORTING
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._reader = threading.Thread(target=self._read, name="log", daemon=True)
        self._reader.start()

    @property
    def exit_code(self) -> int | None:
        """``None`` while it runs; the negative number of the signal that ended it."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait for its end; the exit code."""
        return self._process.wait()

    def last_words(self) -> list[str]:
        """The end of its log, after its end; processes that it left may still hold the log open."""
        self._reader.join(LAST_WORDS_SECONDS)
        return list(self._lines)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            with suppress(OSError):  # a full disk must not stop the server, which waits until it is read
                sys.stdout.buffer.write(raw)
                sys.stdout.buffer.flush()
            line = raw.decode("utf-8", errors="replace").rstrip()
            self._lines.append(line)
            self.phase = phase_of(line) or self.phase


def _guard_group(scratch: str) -> subprocess.Popen[bytes]:
    """Start what removes ``scratch`` and ends our process group, itself included, when we are gone.

    It holds our standard input too, so who waits for that to be closed waits for the end of the group.
    """
    if os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    reading, _ = os.pipe()  # the system closes the writing end when we are gone
    lifeline = os.dup(0)
    guard = subprocess.Popen(["/bin/sh", "-c", _GUARD, "guard", scratch], stdin=reading, pass_fds=(lifeline,))
    os.close(lifeline)
    os.close(reading)
    return guard
