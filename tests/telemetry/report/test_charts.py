"""Which charts a run gets: those it has data for, and nothing that it reports is hidden."""

from __future__ import annotations

import pytest

from miles_core.telemetry.report.charts import MAX_LINES, charts_of
from miles_core.telemetry.report.history import History


@pytest.fixture
def charts():
    def charts(*rows):
        return {c.title: c for c in charts_of(History(tuple(range(1, len(rows) + 1)), rows))}

    return charts


def labels(chart):
    return [line.label for line in chart.lines]


def test_a_chart_without_data_is_left_out_and_one_with_a_part_of_it_stays(charts):
    found = charts({"rollout/reward": 0.5})
    assert list(found) == ["Reward"]
    assert labels(found["Reward"]) == ["all"]
    assert charts() == {}


def test_counts_by_reason_are_stacked_and_absent_ones_are_zero(charts):
    found = charts({"rollout/dropped/stale": 2.0}, {"rollout/dropped/equal": 1.0})
    chart = found["Dropped, by reason"]
    assert chart.stacked
    assert [(line.label, line.values) for line in chart.lines] == [("stale", (2.0, 0.0)), ("equal", (0.0, 1.0))]


def test_many_reasons_keep_the_largest_and_add_up_the_rest(charts):
    row = {f"rollout/dropped/r{index}": float(index) for index in range(1, MAX_LINES + 4)}
    lines = charts(row)["Dropped, by reason"].lines
    assert len(lines) == MAX_LINES
    assert (lines[-1].label, lines[-1].values) == ("4 others", (1.0 + 2 + 3 + 4,))
    assert sum(line.values[0] for line in lines) == sum(row.values())


def test_evaluations_show_their_interval(charts):
    rows = [
        {},
        *({f"eval/{n}{b}": v for n in ("reward", "pass@2") for b, v in (("", 0.5), ("_low", 0.4), ("_high", 0.6))},)
        * 2,
    ]
    found = charts(*rows)
    assert set(found) == {"Evaluation: reward", "Evaluation: pass@k"}
    for title, label in (("Evaluation: reward", "mean"), ("Evaluation: pass@k", "pass@2")):
        (line,) = found[title].lines
        assert (line.label, line.steps, line.values) == (label, (2, 3), (0.5, 0.5))
        assert line.bounds == ((0.4, 0.4), (0.6, 0.6))


def test_an_interval_that_some_steps_lack_is_not_drawn(charts):
    found = charts({"eval/reward": 1.0, "eval/reward_low": 0.0, "eval/reward_high": 1.0}, {"eval/reward": 1.0})
    assert found["Evaluation: reward"].lines[0].bounds is None


@pytest.mark.parametrize(("highest", "log"), [(1e-2, True), (2e-6, False)])
def test_differences_over_orders_of_magnitude_get_a_logarithmic_axis(charts, highest, log):
    found = charts({"train/rollout_logprob_abs_diff": 1e-6, "train/rollout_logprob_abs_diff_max": highest})
    assert found["Logprob difference, trainer and engine"].log is log


def test_a_plugin_s_own_metric_gets_a_chart_among_the_others(charts):
    found = charts({"acme/skew": 1.0, "rollout/reward": 1.0, "weights/version": 3.0})
    assert list(found) == ["Reward", "acme/skew"]
    assert found["Reward"].main
    assert not found["acme/skew"].main
