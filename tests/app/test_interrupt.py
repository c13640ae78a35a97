"""Signals: one more each time, and the last ends the process whatever blocks it."""

from __future__ import annotations

import signal
import subprocess
import sys

CODE = """
import sys, time
from miles_core.app.interrupt import on_interrupt
with on_interrupt(lambda: "first", lambda: "second"):
    print("ready", flush=True)
    time.sleep(100)
"""


def test_each_signal_is_answered_and_the_third_ends_a_blocked_process_at_once() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout.readline() == "ready\n"
        for number, answer in ((signal.SIGINT, "first"), (signal.SIGTERM, "second"), (signal.SIGINT, "ending at once")):
            process.send_signal(number)
            assert process.stderr.readline() == "\n"
            assert process.stderr.readline() == f"interrupted: {answer}\n"
        assert process.wait(10) == 130
    finally:
        process.kill()
        process.communicate()
