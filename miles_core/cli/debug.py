"""``miles debug``: look into what a run did."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

app = App(name="debug", help="Compute a dumped step again and compare.")


@app.command
def replay(run: str, step: int, /) -> int:
    """Compute rewards, advantages and losses of a dumped step again, without engines, and compare them.

    Make a dump with `miles train CONFIG --dump STEP`. Exit code 1 means that a number differs.

    Parameters
    ----------
    run
        The run: its folder, its id below runs/, or `latest`.
    step
        The step, as metrics.jsonl counts it.
    """
    import anyio
    from rich.console import Console
    from rich.table import Table

    from miles_core.app.debug_replay import replay_step
    from miles_core.telemetry.find import find_run

    comparisons = anyio.run(replay_step, find_run(run, Path("runs")), step)
    table = Table(title=f"step {step}", title_justify="left")
    for column in ("what", "values", "differing", "recorded", "computed again"):
        table.add_column(column, overflow="fold")
    for row in comparisons:
        style = "red" if row.differing else None
        table.add_row(row.name, str(row.values), str(row.differing), row.recorded, row.again, style=style)
    Console().print(table)
    differing = [row.name for row in comparisons if row.differing]
    print(f"{len(differing)} of {len(comparisons)} differ: {', '.join(differing)}" if differing else "all equal")  # noqa: T201
    return 1 if differing else 0
