"""Starts SGLang's server and stays with it: ``python -m miles_core.engine.sglang.launch --host H --port P -- COMMAND``.

It runs in our interpreter and COMMAND in the one that has SGLang; ``--port`` is added to COMMAND. The log of the server
becomes its own standard output. When its standard input closes, or it dies, the server and all its processes die.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from miles_core.engine.sglang.diagnosis import diagnose
from miles_core.engine.sglang.health import is_healthy, model_info
from miles_core.engine.sglang.ports import held_port
from miles_core.engine.sglang.ready import Report
from miles_core.engine.sglang.server import Server
from miles_core.engine.sglang.version import check_version
from miles_core.errors import EngineError, MilesError

if TYPE_CHECKING:
    from collections.abc import Sequence

POLL_SECONDS = 0.25
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what others listen on, and what we ask


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the server dies, which is an error, or this process is told to end."""
    own, command = _split(sys.argv[1:] if argv is None else argv)
    report = Report()
    if report.is_child:
        threading.Thread(target=end_with_parent, name="lifeline", daemon=True).start()
    try:
        run(command, own.host, own.port, report)
    except MilesError as error:
        report.failed(error.message, error.remedy)
        sys.stderr.write(f"\n{error}\n")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 1


def run(command: Sequence[str], host: str, port: int, report: Report) -> None:
    """Start the server, say when it serves, and wait for its end.

    Raises:
        EngineError: when it ends, or cannot start.
    """
    report.progress("looking for SGLang")
    check_version(command[0])
    with held_port(host, port) as number:
        server = Server([*command, "--host", host, "--port", str(number)])
        url = _url(host, number)
        _wait_until_ready(server, url, report)
    report.ready(url)
    server.wait()
    raise _death(server)


def end_with_parent() -> None:
    """Exit when standard input closes: only the parent holds its other end."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def _wait_until_ready(server: Server, url: str, report: Report) -> None:
    while not is_healthy(url):
        report.progress(server.phase)
        if server.exit_code is not None:
            raise _death(server)
        time.sleep(POLL_SECONDS)
    model_info(url)


def _death(server: Server) -> EngineError:
    code = server.wait()
    return diagnose(server.last_words(), code)


def _url(host: str, port: int) -> str:
    host = _EVERY_ADDRESS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _split(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="python -m miles_core.engine.sglang.launch")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("command", nargs="+", help="after --: the command that starts SGLang, without its address")
    own = parser.parse_args(argv)
    return own, own.command


if __name__ == "__main__":
    sys.exit(main())
