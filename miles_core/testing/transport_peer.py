"""One end of a weight transport in a process of its own, which takes JSON commands on stdin and answers on stdout."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_core.errors import WeightSyncError
from miles_core.kinds import PluginContext
from miles_core.testing.make import make_plugin
from miles_core.testing.weight_model import make_buckets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class TransportPeer:
    """The process, seen from the other side."""

    def __init__(self, process: subprocess.Popen[str], time_limit: float) -> None:
        self._process = process
        self._time_limit = time_limit

    def ask(self, command: str, *arguments: Any) -> Any:
        """What it answers.

        Raises:
            WeightSyncError: if it refuses, ends, or says nothing in time.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], self._time_limit)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise WeightSyncError(f"the other process gave no answer to {command} within {self._time_limit:g} s")
        answer = json.loads(line)
        if "error" in answer:
            raise WeightSyncError(answer["error"])
        return answer["value"]

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()


@contextmanager
def transport_peer(
    plugin: str, options: Mapping[str, Any], run_dir: Path, *, time_limit: float
) -> Iterator[TransportPeer]:
    """The process of a plugin that can be named; it is gone after the block."""
    argument = json.dumps([plugin, dict(options), str(run_dir)])
    command = [sys.executable, "-m", "miles_core.testing.transport_peer", argument]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, text=True) as process:
        try:
            yield TransportPeer(process, time_limit)
        finally:
            process.kill()


class _Commands:
    """Both ends, each made when it is first used."""

    def __init__(self, plugin: str, options: Mapping[str, Any], run_dir: Path) -> None:
        from miles_core.testing.transport_ends import ReceivingEnd, SendingEnd

        context = PluginContext(run_dir, services={"base_dir": run_dir})
        transport = make_plugin("weight_transports", plugin, options, context)
        self._sending, self._receiving = SendingEnd(transport), ReceivingEnd(transport)

    def offer(self) -> dict[str, Any]:
        return self._receiving.offer()

    def receive(self, index: int, delivery: Mapping[str, Any]) -> None:
        self._receiving.receive(make_buckets()[index], delivery)

    def wrong(self, version: int) -> list[int]:
        return self._receiving.wrong(version)

    def send(self, version: int, offers: list[dict[str, Any]], bases: list[int | None]) -> list[dict[str, Any]]:
        self._sending.open(version, offers, bases)
        return [self._sending.send(bucket, version) for bucket in make_buckets()]


def _main() -> None:
    plugin, options, run_dir = json.loads(sys.argv[1])
    commands = _Commands(plugin, options, Path(run_dir))
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            answer = {"value": getattr(commands, command)(*arguments)}
        except WeightSyncError as error:
            answer = {"error": error.message}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
