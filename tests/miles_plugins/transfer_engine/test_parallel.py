from __future__ import annotations

import threading

import pytest

from miles_plugins.transports.transfer_engine.parallel import in_parallel


def test_calls_run_side_by_side_and_answer_in_order():
    together = threading.Barrier(3, timeout=10)

    def call(number):
        together.wait()
        return number

    assert in_parallel([lambda: call(0), lambda: call(1), lambda: call(2)]) == [0, 1, 2]


def test_a_call_that_is_late_is_none_and_the_others_are_not():
    never = threading.Event()
    assert in_parallel([never.wait, lambda: True], seconds=0.2) == [None, True]
    never.set()


def test_an_error_of_a_call_is_raised():
    with pytest.raises(ZeroDivisionError):
        in_parallel([lambda: 1 // 0, lambda: 1])


def test_no_call_is_no_answer():
    assert in_parallel([]) == []
