"""The stream of tasks: epochs, long prompts, positions."""

from __future__ import annotations

import itertools
import threading

import anyio
import pytest

from miles_core.errors import DataError, SessionError
from miles_core.lib.plugin_calls import PluginCalls
from miles_core.rollout import tasks as module
from miles_core.rollout.tasks import Pending, TaskStream
from miles_core.types import Message, Task

from .conftest import make_trajectory


class Cycle:
    def __init__(self, size: int) -> None:
        self.size, self.at = size, 0

    def take(self, count):
        taken = [divmod(at, self.size) for at in range(self.at, self.at + count)]
        self.at += count
        return [(epoch, Task(f"t{index}", (Message("user", "x" * index),))) for epoch, index in taken]

    def state(self):
        return {"at": self.at}

    def restore(self, state):
        self.at = state["at"]

    def metrics(self):
        return {"skipped_rows": 2.0}


def take(stream: TaskStream, count: int) -> list[Pending]:
    return list(itertools.islice(iter(stream.next, None), count))


def ids(taken) -> list[str]:
    return [pending.task.id for pending in taken]


def test_it_ends_after_its_epochs_and_goes_on_when_a_resumed_run_has_more() -> None:
    stream = TaskStream(Cycle(3), epochs=2)
    assert [(p.epoch, p.task.id) for p in take(stream, 9)] == [(e, f"t{i}") for e in (0, 1) for i in range(3)]
    assert take(stream, 1) == []
    more = TaskStream(Cycle(3), epochs=3)
    more.restore(stream.state())
    assert ids(take(more, 9)) == ["t0", "t1", "t2"]
    same = TaskStream(Cycle(3), epochs=2)
    same.restore(stream.state())
    assert take(same, 1) == []


def test_prompts_that_are_too_long_are_left_out_and_counted() -> None:
    stream = TaskStream(Cycle(5), max_prompt_tokens=2, prompt_tokens=lambda task: len(task.messages[0].text))
    assert ids(take(stream, 4)) == ["t0", "t1", "t2", "t0"], "2 tokens are at the limit, and stay"
    assert stream.metrics() == {"data/epoch": 1, "data/tasks": 4, "data/long_prompts": 2, "data/skipped_rows": 2}


def test_only_long_prompts_are_an_error_not_an_endless_loop(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_LONG_IN_A_ROW", 50)
    stream = TaskStream(Cycle(5), max_prompt_tokens=1, prompt_tokens=lambda task: 2)
    with pytest.raises(DataError, match=r"50 prompts in a row.*data\.max_prompt_tokens = 1.*task t4"):
        take(stream, 1)


def test_a_position_continues_in_the_midst_of_an_epoch() -> None:
    before = TaskStream(Cycle(10))
    take(before, 6)
    after = TaskStream(Cycle(10))
    after.restore(before.state())
    assert ids(take(after, 3)) == ["t6", "t7", "t8"]
    assert after.metrics()["data/tasks"] == 9


def test_a_pending_task_is_recorded_with_what_is_done() -> None:
    pending = Pending(2, Task("a", (Message("user", "q"),), metadata={"k": [1]}), 1, {3: make_trajectory("x", 1.0)})
    again = Pending.from_record(pending.to_record())
    assert (again.epoch, again.task, again.tries, list(again.done)) == (2, pending.task, 1, [3])
    assert again.done[3].reward == pending.done[3].reward


def test_an_epoch_s_end_is_found_without_counting_rows_twice() -> None:
    class Skipping(Cycle):
        def metrics(self):
            return {"skipped_rows": float(self.at)}

    stream = TaskStream(Skipping(3), epochs=1)
    take(stream, 9)
    assert stream.metrics()["data/skipped_rows"] == 4, "the row that showed the end was looked at, and stays counted"
    assert stream.next() is None


def test_a_source_that_raises_anything_is_named() -> None:
    class Broken(Cycle):
        def take(self, count):
            raise SystemExit("bye")

    with pytest.raises(DataError, match=r"data source .*Broken: take\(\) raised SystemExit: bye"):
        TaskStream(Broken(3)).next()


def test_a_prompt_that_the_template_refuses_names_its_task() -> None:
    def refuse(task: Task) -> int:
        raise SessionError("the chat template refuses", remedy="Check the roles.")

    with pytest.raises(DataError, match="prompt of task t0 cannot be tokenized: the chat template refuses"):
        TaskStream(Cycle(3), max_prompt_tokens=5, prompt_tokens=refuse).next()


@pytest.mark.anyio
async def test_a_source_that_blocks_leaves_the_loop_free_and_a_checkpoint_without_its_tasks() -> None:
    taking, go_on = threading.Event(), threading.Event()

    class Blocking(Cycle):
        def take(self, count):
            taken = super().take(count)
            if self.at > 2:
                taking.set()
                assert go_on.wait(10)
            return taken

    stream = TaskStream(Blocking(9))
    fresh, error = await stream.take(2)
    assert (ids(fresh), error) == (["t0", "t1"], None)
    before = stream.state()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.take, 3)
        while not taking.is_set():
            await anyio.lowlevel.checkpoint()
        assert stream.state() == before, "the source has moved, but nobody has its task yet"
        go_on.set()
    assert stream.state()["source"] == {"at": 5}


@pytest.mark.anyio
async def test_what_was_taken_before_a_bad_row_is_handed_over_with_the_error() -> None:
    class Broken(Cycle):
        def take(self, count):
            if self.at == 2:
                raise SystemExit("no more")
            return super().take(count)

    calls = PluginCalls("acme-kit/rows", "data source rows (acme-kit 1.2)")
    fresh, error = await TaskStream(Broken(9), calls=calls).take(5)
    assert ids(fresh) == ["t0", "t1"]
    assert isinstance(error, DataError)
    assert error.message == "data source rows (acme-kit 1.2): take() raised SystemExit: no more"


@pytest.mark.anyio
async def test_a_source_that_never_answers_is_an_error_and_the_position_stays_before_it() -> None:
    go_on = threading.Event()

    class Hanging(Cycle):
        def take(self, count):
            if self.at == 2:
                go_on.wait(10)
            return super().take(count)

    stream = TaskStream(Hanging(9), timeout=0.05, calls=PluginCalls("acme-kit/rows", "data source rows (acme-kit 1.2)"))
    before = stream.state()
    try:
        fresh, error = await stream.take(5)
        assert fresh == [], "what was taken before is taken again after a resume"
        assert isinstance(error, DataError)
        assert error.message == "data source rows (acme-kit 1.2): take() took longer than 0.05 s"
        assert stream.state() == before
    finally:
        go_on.set()


@pytest.mark.parametrize("answer", [["t0"], [(0, "t0")], [("0", Task("t0", ()))], 7, [(0, Task("a", ()))] * 2])
def test_a_source_that_returns_something_else_is_named(answer) -> None:
    class Odd(Cycle):
        def take(self, count):
            return answer

    with pytest.raises(DataError, match=r"must return a list of at most one \(epoch, Task\); got"):
        TaskStream(Odd(3)).next()


@pytest.mark.parametrize("method", ["state", "metrics", "restore"])
def test_every_failure_of_a_source_is_the_source_s(method: str) -> None:
    class Failing(Cycle):
        pass

    def fail(*_):
        raise KeyError("position")

    setattr(Failing, method, fail)
    stream = TaskStream(Failing(3))
    with pytest.raises(DataError, match=rf"{method}\(\) raised KeyError: 'position'"):
        stream.restore({"source": {}}) if method == "restore" else getattr(stream, method)()
