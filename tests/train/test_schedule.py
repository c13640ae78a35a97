"""The learning rate by step."""

from __future__ import annotations

import pytest

from miles_core.train.schedule import LearningRateSchedule


def test_constant_by_default() -> None:
    assert [LearningRateSchedule(0.1, 5).at(step) for step in range(5)] == [0.1] * 5


def test_the_decay_ends_near_its_final_fraction_and_never_below() -> None:
    schedule = LearningRateSchedule(1.0, 10, final_fraction=0.1)
    assert schedule.at(0) == 1.0
    assert schedule.at(5) == pytest.approx(0.55)
    assert schedule.at(9) == pytest.approx(0.19)


def test_the_warm_up_rises_evenly_and_never_starts_at_zero() -> None:
    schedule = LearningRateSchedule(1.0, 100, warmup_steps=4)
    assert [schedule.at(step) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
