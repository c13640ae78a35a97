"""Puts the page together: one file, which opens without a network."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections import defaultdict
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from miles_core.telemetry.episodes import read_episodes
from miles_core.telemetry.report.browser import CHUNK, LOGPROB_SCALE, EpisodeData, collect, packed
from miles_core.telemetry.report.charts import charts_of
from miles_core.telemetry.report.drawing import PALETTE, draw
from miles_core.telemetry.report.summary import facts_of, read_records
from miles_core.telemetry.report.vocabulary import Vocabulary, vocabulary_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from miles_core.telemetry.report.charts import Chart
    from miles_core.telemetry.report.summary import RunRecords
    from miles_core.telemetry.report.vocabulary import Spelling

_SCRIPTS = ("dom", "data", "filter", "list", "tokens", "detail", "main")
_PLACE = re.compile(r"<!--\{(\w+)\}-->")


def write_report(run_dir: Path, output: Path, spelling: Spelling | None, *, notes: Sequence[str] = ()) -> None:
    """Write the page of a run's folder as it is now; it replaces an older one whole.

    Without a ``spelling`` tokens are shown as ids. ``notes`` are lines for the reader, shown with what could not be
    read.

    Raises:
        OSError: if ``output`` cannot be written.
    """
    problems = list(notes)
    records = read_records(run_dir)
    if records.history.unreadable:
        problems.append(f"{records.history.unreadable} lines of metrics.jsonl hold no metrics")
    episodes = collect(read_episodes(run_dir, skipped=problems.append), records.default_environment)
    vocabulary = vocabulary_of(episodes.token_ids, spelling) if spelling else Vocabulary({}, {})
    page = render(records, episodes, vocabulary, problems)
    beside = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(page, "utf-8")
        beside.replace(output)
    finally:
        beside.unlink(missing_ok=True)


def render(records: RunRecords, episodes: EpisodeData, vocabulary: Vocabulary, problems: Sequence[str]) -> str:
    """The page's HTML. Whatever a policy or a plugin wrote is either escaped or inside the packed data."""
    script = "(() => {\n" + "\n".join(_asset(f"{name}.js") for name in _SCRIPTS) + "})();\n"
    places = {
        "policy": _content_policy(script),
        "title": escape(f"{records.run_dir.name} · miles"),
        "run": escape(records.run_dir.name),
        "made": f"{datetime.now(UTC).astimezone():%Y-%m-%d %H:%M:%S %Z}",
        "style": _asset("page.css"),
        "facts": _facts(facts_of(records)),
        "problems": "".join(f"<li>{escape(problem)}</li>" for problem in problems),
        "charts": _charts(records),
        "config": escape(records.config_text) or "config.toml is missing",
        "plugins": _table(records.plugins),
        "data": _data(episodes, vocabulary),
        "script": script,
    }
    return _PLACE.sub(lambda match: places[match[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text("utf-8")


def _content_policy(script: str) -> str:
    """Only this very script may run, and nothing may be fetched: a second wall behind the escaping."""
    digest = b64encode(sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    return "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(text)}</dd></div>" for label, text in facts)


def _charts(records: RunRecords) -> str:
    charts = charts_of(records.history)
    if not charts:
        return '<p class="empty">No step is finished yet: there is nothing to plot.</p>'
    steps = records.history.steps
    drawn: dict[bool, list[str]] = defaultdict(list)
    for chart in charts:
        drawn[chart.main].append(_figure(chart, (steps[0], steps[-1])))
    page = f'<div class="charts">{"".join(drawn[True])}</div>'
    if drawn[False]:
        page += (
            f"<details><summary>{len(drawn[False])} more metrics</summary>"
            f'<div class="charts">{"".join(drawn[False])}</div></details>'
        )
    return page


def _figure(chart: Chart, steps: tuple[int, int]) -> str:
    legend = "".join(
        f'<span class="key"><i style="background:{PALETTE[index % len(PALETTE)]}"></i>{escape(line.label)} '
        f"<b>{line.values[-1]:.4g}</b></span>"
        for index, line in enumerate(chart.lines)
    )
    scale = ' <small title="logarithmic scale">log</small>' if chart.log else ""
    title = escape(chart.title)
    return f"<figure><figcaption><h3>{title}{scale}</h3>{legend}</figcaption>{draw(chart, steps)}</figure>"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns:
        return '<p class="empty">plugins.json is missing.</p>'
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(row.get(name)))}</td>" for name in columns) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _data(episodes: EpisodeData, vocabulary: Vocabulary) -> str:
    index = {"count": episodes.count, "chunk": CHUNK, "scale": LOGPROB_SCALE, "columns": episodes.columns}
    blocks = {"episodes": packed(index), "vocabulary": packed({"texts": vocabulary.texts, "raw": vocabulary.raw})}
    blocks |= {f"chunk-{number}": chunk for number, chunk in enumerate(episodes.chunks)}
    return "\n".join(f'<script type="text/plain" id="{name}">{block}</script>' for name, block in blocks.items())
