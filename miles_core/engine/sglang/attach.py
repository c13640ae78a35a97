"""Stays with a server that runs already: ``python -m miles_core.engine.sglang.attach URL``.

It never starts or ends the server. It ends with an error when the server is gone.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from typing import TYPE_CHECKING

from miles_core.engine.sglang.health import is_healthy, is_there, is_torn, model_info, why_unreachable
from miles_core.engine.sglang.launch import end_with_parent
from miles_core.engine.sglang.ready import Report
from miles_core.errors import EngineError, MilesError

if TYPE_CHECKING:
    from collections.abc import Sequence

CHECK_SECONDS = 2.0
MISSES = 5
REFUSED_SECONDS = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Watch one server until it is gone, which is an error, or this process is told to end."""
    parser = argparse.ArgumentParser(prog="python -m miles_core.engine.sglang.attach")
    parser.add_argument("url")
    url = parser.parse_args(argv).url
    report = Report()
    if report.is_child:
        threading.Thread(target=end_with_parent, name="lifeline", daemon=True).start()
    try:
        watch(url, report, every=CHECK_SECONDS, misses=MISSES, refused_seconds=REFUSED_SECONDS)
    except MilesError as error:
        report.failed(error.message, error.remedy)
        sys.stderr.write(f"{error}\n")
    return 1


def watch(url: str, report: Report, *, every: float, misses: int, refused_seconds: float) -> None:
    """Say when the server serves, then look at it every few seconds; what it serves may not be the run's weights.

    Raises:
        EngineError: when nothing took a connection so many seconds at first, or so many times in a row later.
    """
    report.progress(f"waiting for {url}")
    _wait_until_healthy(url, every, refused_seconds)
    model_info(url)
    report.ready(url, foreign_weights=True)
    missed = 0
    while missed < misses:
        time.sleep(every)
        missed = 0 if is_there(url, every) else missed + 1
    raise EngineError(
        f"the server at {url} is gone: {misses} connections in a row failed",
        remedy="Look at the log of that server; start it again, or take it out of engine.urls.",
    )


def _wait_until_healthy(url: str, every: float, refused_seconds: float) -> None:
    """A server that is busy or loads is waited for; where nothing listens, waiting is in vain."""
    refused_since: float | None = None
    while not (is_healthy(url) or is_torn(url, every)):
        reason = why_unreachable(url, every)
        now = time.monotonic()
        if reason is None:
            refused_since = None
        elif refused_since is None:
            refused_since = now
        elif now - refused_since >= refused_seconds:
            raise EngineError(
                f"no server listens at {url}, for {refused_seconds:g} s: {reason}",
                remedy="Start that server before the run and wait until it listens, or correct engine.urls.",
            )
        time.sleep(every)


if __name__ == "__main__":
    sys.exit(main())
