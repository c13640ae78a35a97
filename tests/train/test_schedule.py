"""The learning rate by step."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.train.schedule import LearningRateSchedule


def test_constant_by_default() -> None:
    assert [LearningRateSchedule(0.1, 5).at(step) for step in range(8)] == [0.1] * 8
    assert LearningRateSchedule(0.1, 5, final_fraction=0.5).at(7) == 0.1, "nothing decays unless it is said"


def test_the_linear_decay_reaches_its_final_fraction_and_stays_there() -> None:
    schedule = LearningRateSchedule(1.0, 10, final_fraction=0.1, decay="linear")
    assert schedule.at(0) == 1.0
    assert schedule.at(5) == pytest.approx(0.55)
    assert schedule.at(9) == pytest.approx(0.19)
    assert [schedule.at(step) for step in (10, 11, 1000)] == [0.1] * 3


def test_the_cosine_decay_is_half_a_period() -> None:
    schedule = LearningRateSchedule(2.0, 8, final_fraction=0.5, decay="cosine")
    expected = [2.0, 1 + 0.5 * (1 + 0.5**0.5), 1.5, 1 + 0.5 * (1 - 0.5**0.5), 1.0, 1.0]
    assert [schedule.at(step) for step in (0, 2, 4, 6, 8, 99)] == pytest.approx(expected)


def test_the_warm_up_rises_evenly_and_never_starts_at_zero() -> None:
    schedule = LearningRateSchedule(1.0, 100, warmup_steps=4)
    assert [schedule.at(step) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_the_warm_up_scales_the_decay() -> None:
    schedule = LearningRateSchedule(1.0, 10, warmup_steps=1, final_fraction=0.0, decay="linear")
    assert [schedule.at(step) for step in (0, 1, 2)] == pytest.approx([0.5, 0.9, 0.8])


@given(st.sampled_from(["linear", "cosine"]), st.integers(1, 300), st.integers(0, 20), st.floats(0, 1))
def test_the_rate_never_leaves_its_bounds_and_falls_after_the_warm_up(
    decay: str, steps: int, warmup: int, final: float
) -> None:
    schedule = LearningRateSchedule(1.0, steps, warmup, final, decay)
    rates = [schedule.at(step) for step in range(warmup, steps + 3)]
    assert all(final - 1e-12 <= rate <= 1 for rate in rates)
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(rates))


def test_a_resumed_run_warms_up_no_second_time() -> None:
    options = {"decay_steps": 1000, "warmup_steps": 10, "final_fraction": 0.0, "decay": "linear"}
    uninterrupted = LearningRateSchedule(1e-3, **options)
    rates = [uninterrupted.at(step) for step in range(103)]
    resumed = LearningRateSchedule(1e-3, **options)
    assert [resumed.at(step) for step in (100, 101, 102)] == rates[100:]
    assert rates[101] == pytest.approx(1e-3 * (1 - 0.101))


@pytest.mark.parametrize(("decay", "steps", "message"), [("linear", None, "needs decay_steps"), ("step", 5, "got 'st")])
def test_a_decay_without_an_end_or_of_no_known_kind_is_refused(decay: str, steps: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LearningRateSchedule(1.0, steps, decay=decay)
