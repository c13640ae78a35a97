"""Loading every plugin in child processes: one that hangs or ends its process is a row like any other."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from miles_core.app.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from miles_core.plugins.reference import PluginRef

AT_ONCE = 4
"""Processes at once: imports wait for the disk half of the time."""
START = 60.0
"""Seconds that a process may take to start, whatever it then loads."""


def load_all(refs: Iterable[PluginRef], timeout: float) -> list[Finding]:
    """Load ``refs``, each within ``timeout`` seconds; a row for every one that fails, by distribution."""
    ordered = sorted(refs, key=lambda ref: ref.distribution or "")
    size = max(1, -(-len(ordered) // AT_ONCE))
    groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [row for rows in pool.map(lambda group: _load_group(group, timeout), groups) for row in rows]


def _load_group(refs: Sequence[PluginRef], timeout: float) -> list[Finding]:
    """One process for all, and another for the rest after one that took its process with it."""
    rows: list[Finding] = []
    while refs:
        failures = []
        with _child(refs) as child:
            done = 0
            for line in _lines(child, timeout):
                answer = json.loads(line)
                if answer["failure"]:
                    failures.append((refs[done], answer["failure"], answer["remedy"]))
                done += 1
            if done < len(refs):
                failures.append((refs[done], f"{refs[done]} {_lost(child, timeout)}", None))
        for ref, found, remedy in failures:
            # Alone, unless it was the first: perhaps one before it broke the process.
            rows += [_row(ref, found, remedy)] if ref is refs[0] else _load_group([ref], timeout)
        refs = refs[done + 1 :]
    return rows


@contextmanager
def _child(refs: Sequence[PluginRef]) -> Iterator[subprocess.Popen[bytes]]:
    keys = ("kind", "name", "target", "distribution", "version")
    path = os.pathsep.join(entry or str(os.curdir) for entry in sys.path)
    with subprocess.Popen(
        [sys.executable, "-P", "-c", "from miles_core.plugins.loading.trial import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,  # what lies in a buffer would not wake `select`
        start_new_session=True,  # what a plugin starts is ended with it
        env={**os.environ, "PYTHONPATH": path},
    ) as child:
        try:
            assert child.stdin is not None
            with suppress(BrokenPipeError):
                child.stdin.write(json.dumps([{key: getattr(ref, key) for key in keys} for ref in refs]).encode())
            child.stdin.close()
            yield child
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)


def _lines(child: subprocess.Popen[bytes], timeout: float) -> Iterator[bytes]:
    """The answers of the child, until it ends or is silent for ``timeout`` seconds."""
    output = _output(child)
    if _has_news(child, START):
        output.readline()  # it says that it has started
    while _has_news(child, timeout) and (line := output.readline()).endswith(b"\n"):
        yield line


def _has_news(child: subprocess.Popen[bytes], timeout: float) -> bool:
    """Whether an answer, or the end of the answers, comes within ``timeout`` seconds."""
    return bool(select.select([_output(child)], [], [], timeout)[0])


def _output(child: subprocess.Popen[bytes]) -> IO[bytes]:
    assert child.stdout is not None
    return child.stdout


def _lost(child: subprocess.Popen[bytes], timeout: float) -> str:
    if not _has_news(child, 0):
        return f"takes longer than {timeout:g} s to import"
    code = child.wait()
    if code < 0:
        return f"kills its process at import: signal {signal.Signals(-code).name}"
    return f"ends its process at import, with exit code {code}"


def _row(ref: PluginRef, found: str, remedy: str | None) -> Finding:
    owner = ref.distribution or ""
    return Finding(owner, "problem", found, remedy or f"Repair or uninstall {owner}, or block it in [plugins].")
