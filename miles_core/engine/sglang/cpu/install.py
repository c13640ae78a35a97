"""Sets SGLang up for a CPU: ``python -m miles_core.engine.sglang.cpu.install``; standard library only.

The environment is made once for all clones of the repository, in a folder named by its pins. A set-up that was stopped
is begun again, and one that finds another at work waits for it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from miles_core.engine.sglang.cpu.environment import (
    REQUIREMENTS,
    SERVER_ENVIRONMENT,
    SERVER_FILE,
    environment_folder,
    interpreter_of,
    is_complete,
    mark_complete,
)
from miles_core.engine.sglang.cpu.lock import locked
from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NEEDED_GB = 5.0
_LOCK_SECONDS = 1800.0
_SAY_SECONDS = 15.0
_NETWORK = "Check the network and pip's index and proxy, and run the command again."
_REMEDIES = {
    "No space left on device": "Free some gigabytes, or set XDG_CACHE_HOME and TMPDIR to a larger disk.",
    "No matching distribution": f"{_NETWORK} The pins are for Python 3.11: `rm -r .venv`, then PYTHON=python3.11.",
    "onnection": _NETWORK,
    "timed out": _NETWORK,
}


def main() -> int:
    """Set it up unless it is there, and say where it is."""
    folder = environment_folder()
    try:
        with locked(
            folder.with_suffix(".lock"),
            seconds=_LOCK_SECONDS,
            waiting=lambda: _say(f"another process is setting up {folder}; waiting for it"),
        ) as lock:
            if not is_complete(folder):
                set_up(folder, lock)
    except EngineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("stopped; the next set-up begins again\n")
        return 130
    _say(f"SGLang for a CPU is ready: {folder}")
    return 0


def set_up(folder: Path, lock: int) -> None:
    """Make the environment from nothing; its processes inherit the descriptor of the ``lock``.

    Raises:
        EngineError: if the machine cannot have it, or a step fails. What is left, the next set-up clears away.
    """
    check_machine(folder)
    _say(f"setting up SGLang for a CPU in {folder} (2.4 GB; some minutes)")
    shutil.rmtree(folder, ignore_errors=True)
    log = folder.with_suffix(".log")
    log.write_bytes(b"")
    plan = steps(folder)
    for number, (title, command) in enumerate(plan.items(), 1):
        _say(f"{number}/{len(plan)} {title}")
        _run(command, title, log, lock)
    mark_complete(folder)
    log.unlink()


def steps(folder: Path) -> dict[str, list[str]]:
    """What makes the environment: titles and commands."""
    python, pins = str(interpreter_of(folder)), str(REQUIREMENTS)
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off", "--no-compile"]
    count = sum("==" in line for line in REQUIREMENTS.read_text("utf-8").splitlines())
    return {
        f"virtual environment of Python {platform.python_version()}": [sys.executable, "-m", "venv", str(folder)],
        f"SGLang and what it imports, {count} packages": [*pip, "--no-deps", "--requirement", pins],
        # compiles what is imported, where pip would compile all: minutes
        "trying whether SGLang is all there": [python, str(SERVER_FILE.with_name("import_all.py"))],
    }


def check_machine(folder: Path) -> None:
    """Refuse a machine that cannot have the environment.

    Raises:
        EngineError: on another system than Linux on x86-64, or with too little disk.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise EngineError(
            f"SGLang for a CPU needs Linux on x86-64; this is {sys.platform} on {platform.machine()}",
            remedy="Use the embedded engine, or a Linux machine.",
        )
    free = shutil.disk_usage(folder.parent).free / 1e9
    if free < NEEDED_GB:
        raise EngineError(
            f"{folder.parent} has {free:.1f} GB free; setting up SGLang for a CPU takes {NEEDED_GB:.0f} GB",
            remedy="Free some space, or set XDG_CACHE_HOME to a larger disk.",
        )


def _run(command: Sequence[str], title: str, log: Path, lock: int) -> None:
    """Run a step with its output in the log, whose last line is shown from time to time."""
    begin = time.monotonic()
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **SERVER_ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": ""},
            pass_fds=(lock,),
        )
    while True:
        try:
            code = process.wait(timeout=_SAY_SECONDS)
            break
        except subprocess.TimeoutExpired:
            _say(f"    {time.monotonic() - begin:.0f} s: {_tail(log, 1)[:100]}")
    if code != 0:
        text = _tail(log, 20)
        remedy = next((remedy for words, remedy in _REMEDIES.items() if words in text), f"Read {log}.")
        raise EngineError(f"{title} failed (exit status {code}):\n{text}", remedy=remedy)


def _tail(log: Path, lines: int) -> str:
    return "\n".join(log.read_text("utf-8", "replace").rstrip().splitlines()[-lines:])


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
