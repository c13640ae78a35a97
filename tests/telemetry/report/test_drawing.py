"""Charts as SVG: well-formed, light, in the page's colours, and without losing a spike."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from miles_core.telemetry.report.charts import Chart, Line
from miles_core.telemetry.report.drawing import MAX_POINTS, PALETTE, draw

STEPS = tuple(range(1, 9))


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("length", [1, 8, 60, 5000])
def test_every_chart_is_one_small_well_formed_element(stacked, length):
    steps = tuple(range(1, length + 1))
    lines = tuple(Line(str(n), steps, tuple(float((step * n) % 7) for step in steps)) for n in (1, 2))
    svg = draw(Chart("t", lines, stacked=stacked), (1, length))
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert len(svg) < 200_000
    assert all(color in svg for color in PALETTE[:2])
    assert "currentColor" in svg


def test_the_axis_of_steps_has_whole_numbers_and_is_the_run_s():
    line = Line("eval", (4,), (0.5,))
    assert [text for text in texts(draw(Chart("t", (line,)), (1, 8))) if text in "2468"] == ["2", "4", "6", "8"]


@pytest.mark.parametrize("value", [0.0, 1.0, 1 - 1e-12, -3.0, 1e-14])
def test_values_that_hardly_differ_get_ticks_that_do(value):
    line = Line("x", STEPS, (value,) * 7 + (value * (1 + 1e-12),))
    ticks = texts(draw(Chart("t", (line,)), (1, 8)))[4:]  # after those of the steps
    assert len(ticks) >= 2
    assert len(set(ticks)) == len(ticks)


def test_a_logarithmic_axis_leaves_out_zeros_and_names_its_decades():
    line = Line("x", STEPS, (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0))
    assert "0.01" in texts(draw(Chart("t", (line,), log=True), (1, 8)))


def test_thinning_a_long_run_keeps_its_single_spike():
    steps = tuple(range(1, 20 * MAX_POINTS))
    flat = [0.0] * len(steps)
    flat[12_345] = 1000.0
    assert "1000" in texts(draw(Chart("t", (Line("x", steps, tuple(flat)),)), (1, len(steps))))
