"""``miles r3``: what routing replay does."""

from __future__ import annotations

import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

if TYPE_CHECKING:
    from rich.table import Table

    from miles_core.app.r3_report import ReplayReport

app = App(name="r3", help="Show what routing replay does to a step of a run.")


@app.command
def report(
    run: str,
    /,
    *,
    step: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    dtype: Literal["float32", "bfloat16"] | None = None,
    perturb: Annotated[float, Parameter(validator=Number(gte=0))] = 0.0,
    seed: int = 0,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Compare the trainer's routes and logprobs with the rollout's, with and without replay.

    It works on a dumped step, without engines. Make a dump with `miles train CONFIG --dump STEP`. Exit code 1 means
    that replay did not give the experts the rollout's routes.

    Parameters
    ----------
    run
        The run: its folder, its id below runs/, or `latest`.
    step
        The dumped step, as metrics.jsonl counts it; by default the newest dump.
    dtype
        The type that the trainer computes in; by default the run's. Another one shows what rounding does to routes.
    perturb
        First add noise to the trainer's weights, as a share of each weight's standard deviation, such as 0.02: what a
        trainer whose weights are not the engine's would see.
    seed
        Seed of the noise.
    json
        Print one JSON object.
    """
    from miles_core.app.r3_report import report_step
    from miles_core.telemetry.find import find_run

    made = report_step(find_run(run, Path("runs")), step, dtype=dtype, perturb=perturb, seed=seed)
    proven = not any(made.replayed.used)
    if json:
        sys.stdout.write(json_module.dumps(asdict(made), indent=2) + "\n")
        return 0 if proven else 1
    _show(made, perturb)
    if not proven:
        sys.stderr.write("replay is not proven: experts were given other routes than the rollout's\n")
    return 0 if proven else 1


def _show(made: ReplayReport, perturb: float) -> None:
    from rich.console import Console

    noise = f", weights perturbed by {perturb:g} of their standard deviation" if perturb else ""
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"step {made.step}: {made.samples} samples, {made.trained_tokens} trained tokens, "
        f"{len(made.layer_ids)} MoE layers of {made.num_experts} experts, top-{made.top_k}{noise}\n"
    )
    console.print("tokens whose set of experts is not the rollout's")
    console.print(_routes(made))
    console.print("trainer's against rollout's logprobs of trained tokens, in nats")
    console.print(_logprobs(made))


def _routes(made: ReplayReport) -> Table:
    """By layer: what the router would choose and what the experts got."""
    table = _table("layer", "router chose", "with replay", "experts got", "with replay")
    columns = (made.without.own, made.replayed.own, made.without.used, made.replayed.used)
    for number, shares in zip(made.layer_ids, zip(*columns, strict=True), strict=True):
        table.add_row(str(number), *(f"{share:.3%}" for share in shares))
    table.add_section()
    table.add_row("all", *(f"{sum(column) / len(column):.3%}" for column in columns))
    return table


def _logprobs(made: ReplayReport) -> Table:
    table = _table("", "without replay", "with replay")
    for name, field in (("mean |difference|", "mean_abs_diff"), ("max |difference|", "max_abs_diff"), ("KL", "kl")):
        table.add_row(name, *(f"{getattr(figures, field):.3g}" for figures in (made.without, made.replayed)))
    return table


def _table(*columns: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right")
    return table
