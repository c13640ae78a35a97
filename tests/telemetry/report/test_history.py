"""Metrics are read while they are written, after resumes, and around lines that hold none."""

from __future__ import annotations

import pytest

from miles_core.telemetry.report.history import read_history


@pytest.fixture
def read(tmp_path):
    def read(text):
        (tmp_path / "metrics.jsonl").write_bytes(text.encode("utf-8", "surrogatepass"))
        return read_history(tmp_path / "metrics.jsonl")

    return read


def test_a_metric_is_a_series_over_the_steps_that_have_it(read):
    history = read('{"step": 1, "a": 1, "b": 2}\n{"step": 2, "a": null, "c": "x"}\n{"step": 3, "a": 0.5}\n')
    assert history.steps == (1, 2, 3)
    assert history.series("a") == ((1, 3), (1.0, 0.5))
    assert history.filled("b") == (2.0, 0.0, 0.0)
    assert history.names == ["a", "b"]


@pytest.mark.parametrize("last", ['{"step": 2, "a"', '{"step": 2, "a": 1}', "{", ""])
def test_a_last_line_that_is_still_being_written_is_left_out(read, last):
    history = read('{"step": 1, "a": 1}\n' + last)
    assert (history.steps, history.unreadable) == ((1,), 0)


def test_a_second_line_of_a_step_adds_to_the_first(read):
    history = read('{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n{"step": 2, "eval/reward": 0.5}\n')
    assert history.series("a") == ((1, 2), (1.0, 2.0))
    assert history.series("eval/reward") == ((2,), (0.5,))


def test_a_run_that_went_back_to_an_earlier_step_counts_from_there(read):
    rows = "".join(f'{{"step": {step}, "{name}": {step}}}\n' for step, name in ((1, "a"), (2, "a"), (3, "a"), (2, "b")))
    history = read(rows)
    assert history.series("a") == ((1,), (1.0,))
    assert history.series("b") == ((2,), (2.0,))


def test_lines_without_metrics_are_counted_and_values_that_are_not_finite_left_out(read):
    history = read('{"step": 1, "a": NaN, "b": Infinity}\nnoise\n[1]\n{"a": 1}\n\n{"step": 2, "b": true}\n')
    assert (history.steps, history.names, history.unreadable) == ((1, 2), [], 3)


def test_no_file_is_an_empty_history(tmp_path):
    assert read_history(tmp_path / "metrics.jsonl").steps == ()
