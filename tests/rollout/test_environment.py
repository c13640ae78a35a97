"""An episode's environment: made and called off the event loop, and named in whatever goes wrong."""

from __future__ import annotations

import threading

import anyio
import pytest

from miles_core.errors import PluginError, RolloutError
from miles_core.lib.plugin_calls import CallLog
from miles_core.rollout.environment import EnvironmentRunner
from miles_core.types import Message, Task

pytestmark = pytest.mark.anyio

TASK = Task("t0", (Message("user", "q"),))
TITLE = "environment maze (acme-envs 1.2)"


class Quiet:
    closed = 0

    def reset(self, task, seed):
        return None

    def step(self, response): ...

    def close(self):
        self.closed += 1


def runner(make, timeout: float = 5.0, log: CallLog | None = None) -> EnvironmentRunner:
    return EnvironmentRunner(None, "maze", timeout, (log or CallLog()).of("acme-envs/maze", TITLE), make=make)


async def test_it_is_made_in_a_thread_once_and_closed_once() -> None:
    threads, made, log = [], [], CallLog()

    def make() -> Quiet:
        threads.append(threading.get_ident())
        made.append(Quiet())
        return made[-1]

    environment = runner(make, log=log)
    assert await environment.reset(TASK, 0) is None
    await environment.close()
    assert threads != [threading.get_ident()]
    assert [one.closed for one in made] == [1]
    metrics = log.take_metrics()
    assert (metrics["plugins/acme-envs/maze/calls"], metrics["plugins/acme-envs/maze/failures"]) == (2, 0)


async def test_an_async_reset_is_awaited_on_the_loop() -> None:
    class Later(Quiet):
        async def reset(self, task, seed):
            await anyio.lowlevel.checkpoint()
            return f"{task.id} {seed} {threading.get_ident()}"

    message = await runner(Later).reset(TASK, 7)
    assert message == Message("user", f"t0 7 {threading.get_ident()}")


async def test_one_that_was_never_made_is_not_closed() -> None:
    def make() -> Quiet:
        raise PluginError("no docker")

    environment = runner(make)
    with pytest.raises(PluginError, match="no docker"):
        await environment.reset(TASK, 0)
    await environment.close()


async def test_a_constructor_or_a_step_that_hangs_is_named_with_its_distribution() -> None:
    release = threading.Event()

    class Hangs(Quiet):
        def step(self, response):
            release.wait(60)

    for make, method in ((lambda: release.wait(60), "reset"), (Hangs, "step")):
        environment = runner(make, timeout=0.2)

        async def play(environment: EnvironmentRunner = environment) -> None:
            await environment.reset(TASK, 0)
            await environment.step(Message("assistant", "a"))

        with pytest.raises(RolloutError, match=rf"maze \(acme-envs 1\.2\): {method}\(\) took longer than 0\.2 s"):
            await play()
    release.set()


async def test_a_close_that_fails_or_hangs_is_a_warning_that_names_it(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    class Fails(Quiet):
        def close(self):
            raise SystemExit(1)

    class Hangs(Quiet):
        def close(self):
            release.wait(60)

    for make in (Fails, Hangs):
        environment = runner(make, timeout=0.2)
        await environment.reset(TASK, 0)
        await environment.close()
    release.set()
    assert [record.getMessage() for record in caplog.records if record.name == "miles.plugins"] == [
        f"{TITLE}: close() raised RuntimeError: it raised SystemExit: 1",
        f"{TITLE}: close() took longer than 0.2 s",
    ]
