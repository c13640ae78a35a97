"""Several trackers at once: none stops, blocks or outlives the run."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from miles_core.kinds.base import PluginContext
from miles_core.telemetry.tracking import Trackers
from miles_plugins.trackers.jsonl import Jsonl


class Recorder:
    """Keeps what it gets; ``fails`` says which steps raise."""

    def __init__(self, fails: Callable[[int], bool] = lambda step: False, error: BaseException | None = None) -> None:
        self.rows: list[tuple[int, Mapping[str, float]]] = []
        self.asked: list[int] = []
        self.closed = 0
        self._fails = fails
        self._error = error or OSError("No space left on device")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.asked.append(step)
        if self._fails(step):
            raise self._error
        self.rows.append((step, metrics))

    def close(self) -> None:
        self.closed += 1


class Gate:
    """Blocks until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.steps: list[int] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.entered.set()
        self.open.wait()
        self.steps.append(step)

    def close(self) -> None:
        pass


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()


def test_every_tracker_gets_every_step_in_order_and_is_closed_once() -> None:
    first, second = Recorder(), Recorder()
    trackers = Trackers([("first", first), ("second", second)], pytest.fail)
    for step in range(1, 501):
        trackers.log(step, {"loss": 1 / step})
    trackers.close()
    trackers.close()
    trackers.log(501, {})
    assert first.rows == second.rows == [(step, {"loss": 1 / step}) for step in range(1, 501)]
    assert (first.closed, second.closed) == (1, 1)
    assert trackers.failures == {"first": 0, "second": 0}
    assert trackers.stuck == ()


def test_a_step_is_recorded_as_it_was_when_it_was_logged(gate: Gate) -> None:
    class Late(Gate):
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            gate.open.wait()
            rows.append(dict(metrics))

    rows: list[Mapping[str, float]] = []
    late = Late()
    trackers, metrics = Trackers([("late", late)], pytest.fail), {"loss": 1.0}
    trackers.log(1, metrics)
    metrics["loss"] = 2.0
    gate.open.set()
    trackers.close()
    assert rows == [{"loss": 1.0}]


@pytest.mark.parametrize("error", [ValueError("bad"), OSError(28, "No space left on device"), SystemExit(3)])
def test_a_tracker_that_always_fails_is_left_out_after_three_times_and_the_others_go_on(error: BaseException) -> None:
    warnings: list[str] = []
    bad, good = Recorder(lambda step: True, error), Recorder()
    trackers = Trackers([("bad", bad), ("good", good)], warnings.append)
    for step in range(1, 9):
        trackers.log(step, {})
    trackers.close()
    assert [step for step, _ in good.rows] == list(range(1, 9))
    assert bad.asked == [1, 2, 3]
    assert bad.closed == 1, "what it holds is released"
    assert trackers.failures == {"bad": 3, "good": 0}
    assert [type(error).__name__ in warnings[0], "left out" in warnings[1], len(warnings)] == [True, True, 2]
    assert all(warning.startswith("tracker bad: ") for warning in warnings)


def test_a_tracker_that_fails_now_and_then_is_tried_at_each_step_and_warned_about_once() -> None:
    warnings: list[str] = []
    shaky = Recorder(lambda step: step % 3 != 0)
    trackers = Trackers([("shaky", shaky)], warnings.append)
    for step in range(1, 13):
        trackers.log(step, {})
    trackers.close()
    assert shaky.asked == list(range(1, 13))
    assert [step for step, _ in shaky.rows] == [3, 6, 9, 12]
    assert trackers.failures == {"shaky": 8}
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0]


def test_a_tracker_that_cannot_close_is_a_warning() -> None:
    class Clingy(Recorder):
        def close(self) -> None:
            raise RuntimeError("still busy")

    warnings: list[str] = []
    trackers = Trackers([("clingy", Clingy())], warnings.append)
    trackers.close()
    assert warnings == ["tracker clingy: close() raised RuntimeError: still busy; further failures are only counted"]
    assert trackers.failures == {"clingy": 1}


def test_a_tracker_that_blocks_does_not_block_the_run_and_drops_what_its_queue_cannot_hold(gate: Gate) -> None:
    warnings: list[str] = []
    good = Recorder()
    trackers = Trackers([("slow", gate), ("good", good)], warnings.append, queue_size=5)
    trackers.log(1, {})
    assert gate.entered.wait(10)
    for step in range(2, 12):
        trackers.log(step, {})
    assert trackers.dropped["slow"] == 5
    gate.open.set()
    trackers.close()
    assert gate.steps == [1, 2, 3, 4, 5, 6]
    assert any("behind by 5 steps" in warning for warning in warnings)
    assert "tracker slow: 5 steps were dropped" in warnings


def test_closing_gives_up_on_trackers_that_hang_after_one_time_out_for_all(gate: Gate) -> None:
    warnings: list[str] = []
    good = Recorder()
    trackers = Trackers([("a", gate), ("good", good), ("b", gate)], warnings.append, close_timeout=0.3)
    for step in (1, 2):
        trackers.log(step, {})
    trackers.close()
    assert trackers.stuck == ("a", "b")
    assert len(good.rows) == 2
    assert [warning.partition(":")[0] for warning in warnings] == ["tracker a", "tracker b"]
    assert all("did not come to an end" in warning for warning in warnings)


def test_two_trackers_of_one_name_are_counted_apart() -> None:
    trackers = Trackers([("tb", Recorder()), ("tb", Recorder(lambda step: True))], lambda text: None)
    trackers.log(1, {})
    trackers.close()
    assert trackers.failures == {"tb": 0, "tb (2)": 1}


def test_a_broken_warning_channel_harms_nothing() -> None:
    def broken(text: str) -> None:
        raise BrokenPipeError(text)

    good = Recorder()
    trackers = Trackers([("bad", Recorder(lambda step: True)), ("good", good)], broken)
    for step in range(1, 6):
        trackers.log(step, {})
    trackers.close()
    assert len(good.rows) == 5
    assert trackers.failures["bad"] == 3


def test_everything_is_on_disk_after_close(tmp_path: Path) -> None:
    trackers = Trackers([("jsonl", Jsonl(None, PluginContext(run_dir=tmp_path)))], pytest.fail)
    for step in range(1, 301):
        trackers.log(step, {"loss": 0.5})
    trackers.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 300


def test_a_process_ends_although_a_tracker_hangs() -> None:
    code = """
import threading
from miles_core.telemetry.tracking import Trackers
class Hangs:
    def log(self, step, metrics): threading.Event().wait()
    def close(self): pass
trackers = Trackers([("hangs", Hangs())], print, close_timeout=0.2)
trackers.log(1, {})
trackers.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert "tracker hangs: it did not come to an end" in done.stdout
