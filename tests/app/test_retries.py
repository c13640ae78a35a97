"""What failed rests ever longer, what succeeded does not rest."""

from __future__ import annotations

import pytest

from miles_core.app import retries
from miles_core.app.retries import Retries


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(retries.time, "monotonic", lambda: now[0])
    return now


def test_what_never_failed_does_not_rest() -> None:
    assert Retries().wait("a", 10.0) == 0


def test_the_pause_doubles_up_to_five_minutes(clock: list[float]) -> None:
    failures = Retries()
    pauses = []
    for _ in range(7):
        failures.failed("a")
        pauses.append(failures.wait("a", 10.0))
    assert pauses == [10, 20, 40, 80, 160, 300, 300]


def test_a_pause_passes(clock: list[float]) -> None:
    failures = Retries()
    failures.failed("a")
    clock[0] += 4
    assert failures.wait("a", 10.0) == 6
    clock[0] += 60
    assert failures.wait("a", 10.0) == 0


def test_a_success_is_forgotten_with_its_count(clock: list[float]) -> None:
    failures = Retries()
    for key in ("a", "a", "b"):
        failures.failed(key)
    failures.keep(["b"])
    assert (failures.wait("a", 10.0), failures.wait("b", 10.0)) == (0, 10)
    failures.failed("a")
    assert failures.wait("a", 10.0) == 10


def test_ten_thousand_failures_do_not_overflow(clock: list[float]) -> None:
    failures = Retries()
    for _ in range(10_000):
        failures.failed("a")
    assert failures.wait("a", 10.0) == 300
