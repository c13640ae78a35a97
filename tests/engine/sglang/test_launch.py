"""The launcher: says what happens, names the cause of a death, and leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest

from miles_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.app.processes import Child

pytestmark = pytest.mark.anyio


def processes_of(log: Path) -> list[int]:
    """The stand-in and the child that it started, as its log names them."""
    found = re.search(r"child=(\d+) own=(\d+)", log.read_text())
    assert found is not None
    return [int(pid) for pid in found.groups()]


def assert_gone(pids: list[int]) -> None:
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(10)


def ask(child: Child, path: str, *, post: bool = False) -> None:
    request = urllib.request.Request(child.ready["url"] + path, data=b"{}" if post else None)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


async def test_a_server_is_ready_when_it_answers_and_each_phase_was_said_once(launched: Callable[..., Any]) -> None:
    said: list[str] = []
    async with launched(said=said.append) as server:
        ask(server, "/model_info")
        assert set(server.ready) == {"url"}
    assert said[:2] == ["looking for SGLang", "importing SGLang"]
    assert len(set(said)) == len(said)


def files_of(log: Path) -> list[Path]:
    """A socket of the stand-in, and the shared memory that SGLang would name after it."""
    found = re.search(r"socket=(\S+) shared=(\S+)", log.read_text())
    assert found is not None
    files = [Path(name) for name in found.groups()]
    assert all(file.exists() for file in files)
    return files


async def test_nothing_of_a_server_stays_when_the_run_ends(launched: Callable[..., Any]) -> None:
    async with launched() as server:
        processes, files = processes_of(server.log), files_of(server.log)
    assert_gone(processes)
    assert not any(file.exists() for file in files)
    assert not files[0].parent.exists()


async def test_nothing_of_a_server_stays_when_the_launcher_is_killed(launched: Callable[..., Any]) -> None:
    async with launched() as server:
        processes, files = processes_of(server.log), files_of(server.log)
        os.kill(server.process.pid, signal.SIGKILL)
        assert_gone(processes)
        assert not any(file.exists() for file in files)
        assert not files[0].parent.exists()


async def test_a_start_that_is_given_up_is_ended_with_all_its_processes(
    launched: Callable[..., Any], tmp_path: Path
) -> None:
    with anyio.CancelScope() as scope:

        def give_up(said: str) -> None:
            if said == "loading weights":
                scope.cancel()

        async with launched("--behave", "hang", said=give_up):
            raise AssertionError("it is not ready")
    assert_gone(processes_of(tmp_path / "engine-0.log"))


async def test_a_death_at_the_start_names_the_cause_that_sglang_logged(
    launched: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="Not enough memory") as caught:
        async with launched("--behave", "die"):
            pass
    assert caught.value.remedy is not None
    assert "engine.mem_fraction_static" in caught.value.remedy
    assert_gone(processes_of(tmp_path / "engine-0.log"))


async def test_a_death_in_service_ends_the_launcher_with_the_cause_in_its_log(launched: Callable[..., Any]) -> None:
    async with launched() as server:
        processes = processes_of(server.log)
        with pytest.raises(OSError, match="closed|reset"):
            ask(server, "/die", post=True)
        with pytest.raises(EngineError, match="SGLang's server ended with exit code 3"):
            await server.watch()
        assert_gone(processes)


async def test_servers_that_start_at_once_listen_on_ports_of_their_own(launched: Callable[..., Any]) -> None:
    urls: set[str] = set()

    async def start(name: str) -> None:
        async with launched(name=name) as server:
            urls.add(server.ready["url"])
            ask(server, "/model_info")
            started[name].set()
            for event in started.values():
                await event.wait()

    started = {f"engine-{index}": anyio.Event() for index in range(3)}
    async with anyio.create_task_group() as tasks:
        for name in started:
            tasks.start_soon(start, name)
    assert len(urls) == 3


async def test_a_port_in_use_is_refused_before_anything_starts(launched: Callable[..., Any], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with launched(port=port):
                pass
    assert "server_args" not in (tmp_path / "engine-0.log").read_text()


async def test_an_old_sglang_is_refused_with_both_versions(launched: Callable[..., Any]) -> None:
    with pytest.raises(EngineError, match=r"0\.4\.9.*0\.5\.23") as caught:
        async with launched(version="0.4.9"):
            pass
    assert "pip install" in str(caught.value.remedy)


async def test_an_interpreter_without_sglang_is_refused(launched: Callable[..., Any]) -> None:
    with pytest.raises(EngineError, match="has no SGLang") as caught:
        async with launched(version=""):
            pass
    assert "make sglang-cpu" in str(caught.value.remedy)
