"""Draws charts as SVG with matplotlib, which is imported here only, and only when something is drawn."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.telemetry.report.charts import Chart, Line

PALETTE = ("#3b76d6", "#e07b39", "#3f9e5a", "#c4487a", "#8a63c9", "#b59a1e", "#2fa3a8", "#8c8c8c")
"""Colours of a chart's lines, in order; readable on white and on near-black."""

MAX_POINTS = 1000
_MARKED_POINTS = 40
# Colours of the page's own: drawn as these, then written as what the style sheet knows.
_INK, _GRID = "#010203", "#040506"
_WIDTH, _HEIGHT = 4.4, 2.0  # inches at 72 dots
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, and in the page's own font
    "svg.hashsalt": "miles",
    "font.size": 8.5,
    "text.color": _INK,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _GRID,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
}


def draw(chart: Chart, steps: tuple[int, int]) -> str:
    """An ``<svg>`` element; ``steps`` are the first and last step of the axis, the same for all charts of a run."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, _HEIGHT))
        axes = figure.add_axes((0.13, 0.13, 0.85, 0.81))
        _axes(axes, chart, steps)
        if chart.stacked:
            _stack(axes, chart.lines)
        else:
            _lines(axes, chart.lines)
        axes.set_xlim(steps[0] - 0.5, steps[1] + 0.5)
        _widen(axes, chart)
        buffer = io.StringIO()
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    return _inlined(buffer.getvalue())


def _axes(axes: Any, chart: Chart, steps: tuple[int, int]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    plain = FuncFormatter(lambda value, _: f"{value:g}")
    if chart.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=5))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(plain)
    axes.xaxis.set_major_locator(MaxNLocator(min(8, max(steps[1] - steps[0], 1)), integer=True))
    axes.xaxis.set_major_formatter(plain)
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis="y", linewidth=0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _lines(axes: Any, lines: Sequence[Line]) -> None:
    for line, color in zip(lines, _colors(len(lines)), strict=True):
        marker = "o" if len(line.values) <= _MARKED_POINTS else None
        steps, values = _thinned(line.steps, line.values)
        axes.plot(steps, values, color=color, linewidth=1.3, marker=marker, markersize=2.4)
        if line.bounds is not None:
            axes.fill_between(line.steps, *line.bounds, color=color, alpha=0.2, linewidth=0)


def _stack(axes: Any, lines: Sequence[Line]) -> None:
    if len(lines[0].values) <= _MARKED_POINTS:  # bars show single steps, where areas would slope between them
        base = [0.0] * len(lines[0].values)
        for line, color in zip(lines, _colors(len(lines)), strict=True):
            axes.bar(line.steps, line.values, bottom=base, color=color, width=0.85)
            base = [below + value for below, value in zip(base, line.values, strict=True)]
    else:
        thinned = [_averaged(line.steps, line.values) for line in lines]
        axes.stackplot(
            thinned[0][0], *(values for _, values in thinned), colors=_colors(len(lines)), linewidth=0, step="mid"
        )
    axes.set_ylim(bottom=0)


def _widen(axes: Any, chart: Chart) -> None:
    """Give values that hardly differ an axis whose ticks do."""
    low = min(min(line.values) for line in chart.lines)
    high = max(max(line.values) for line in chart.lines)
    if not chart.stacked and high - low <= 1e-4 * max(abs(low), abs(high)):
        margin = 0.1 * abs(high) or 0.05
        axes.set_ylim(low - margin, high + (margin if high else 1.0))


def _colors(count: int) -> list[str]:
    return [PALETTE[index % len(PALETTE)] for index in range(count)]


def _thinned(steps: Sequence[int], values: Sequence[float]) -> tuple[Sequence[int], Sequence[float]]:
    """At most ``MAX_POINTS``: of each bin the lowest and the highest, so that no spike gets lost."""
    if len(values) <= MAX_POINTS:
        return steps, values
    chosen: list[int] = []
    for start, end in _bins(len(values), MAX_POINTS // 2):
        indexes = range(start, end)
        chosen.extend(sorted({min(indexes, key=values.__getitem__), max(indexes, key=values.__getitem__)}))
    return [steps[index] for index in chosen], [values[index] for index in chosen]


def _averaged(steps: Sequence[int], values: Sequence[float]) -> tuple[Sequence[int], Sequence[float]]:
    if len(values) <= MAX_POINTS:
        return steps, values
    bins = _bins(len(values), MAX_POINTS)
    return [steps[start] for start, _ in bins], [sum(values[start:end]) / (end - start) for start, end in bins]


def _bins(length: int, count: int) -> list[tuple[int, int]]:
    edges = [length * index // count for index in range(count + 1)]
    return list(pairwise(edges))


def _inlined(svg: str) -> str:
    """The element alone, in the page's colours and as wide as its place."""
    element = svg[svg.index("<svg") :].strip()
    width, height = f'width="{_WIDTH * 72:g}pt"', f'height="{_HEIGHT * 72:g}pt"'
    element = element.replace(width, "", 1).replace(height, 'aria-hidden="true"', 1)
    return element.replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
