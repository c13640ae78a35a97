"""``miles weights verify``: trainer and engines compared, tensor by tensor."""

from __future__ import annotations

import json as json_module
import sys
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter
from cyclopts.validators import Number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from miles_core.app.verify import Difference, EngineFinding, VerifyReport

_SHOWN = 10


def verify(
    run: str,
    /,
    *,
    checkpoint: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    all: Annotated[bool, Parameter(negative=())] = False,  # noqa: A002 - the name of the flag
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Compare what the engines of a live run hold with what its trainer sent, tensor by tensor.

    What the trainer sent is compared with a checkpoint as well, where there is one of the same version. Engines go on
    serving. Exit code 1 means that something differs, or that an engine could not be asked.

    Parameters
    ----------
    run
        The run: its folder, its id below runs/, or `latest`.
    checkpoint
        The step of the checkpoint to compare with, whatever its version.
    all
        Show every tensor that differs, not only the first ones of each engine.
    json
        Print one JSON object.
    """
    from miles_core.app.verify import verify_run
    from miles_core.telemetry.find import find_run

    with _bars() as bar:
        report = anyio.run(partial(verify_run, find_run(run, Path("runs")), checkpoint, on_bytes=bar))
    if json:
        sys.stdout.write(json_module.dumps({"ok": report.ok, **asdict(report)}, indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(_lines(report, None if all else _SHOWN)) + "\n")
    return 0 if report.ok else 1


@contextmanager
def _bars() -> Iterator[Callable[[str], Callable[[int, int], None]]]:
    """One bar for each engine and checkpoint, on a terminal."""
    from rich.console import Console
    from rich.progress import Progress, TaskID

    console = Console(file=sys.stderr)
    tasks: dict[str, TaskID] = {}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:

        def bar(name: str) -> Callable[[int, int], None]:
            if name not in tasks:  # it is asked again while an update goes on
                tasks[name] = progress.add_task(name, total=None)
            return lambda done, total: progress.update(tasks[name], completed=done, total=total)

        yield bar


def _lines(report: VerifyReport, limit: int | None) -> Iterator[str]:
    way = f", by {report.transport}" if report.transport else ", loaded from the checkpoint"
    yield f"run {report.run}: version {report.version}{way}{f' ({report.path})' if report.path else ''}"
    width = max((len(engine.name) for engine in report.engines), default=0)
    for engine in report.engines:
        yield f"{engine.name:<{width}}  {engine.url}  {_said(engine)}"
        yield from _differing(engine.differences, limit)
    against = report.checkpoint
    if against is None:
        yield "no checkpoint of this version to compare the trainer with"
    elif against.differences:
        count = len(against.differences)
        yield f"{against.name} is not what the trainer sent: {count} of {against.tensors} tensors differ"
        yield from _differing(against.differences, limit)
    else:
        yield f"{against.name} is what the trainer sent: {against.tensors} tensors"
    yield "verified" if report.ok else "NOT VERIFIED"


def _said(engine: EngineFinding) -> str:
    reason = f": {engine.reason}" if engine.reason else ""
    match engine.state:
        case "equal":
            return f"holds what the trainer sent: {engine.tensors} tensors, {engine.nbytes / 1e6:.1f} MB"
        case "differs":
            return f"DIFFERS: {len(engine.differences)} of {engine.tensors} tensors"
        case "replica":
            same = engine.reason or "holds what the first of its kind holds"
            return f"{same}; without a receiver of miles nothing more can be said ({engine.tensors} parameters)"
        case "behind":
            return f"not compared{reason}"
        case "failed":
            return f"FAILED{reason}"


def _differing(differences: Sequence[Difference], limit: int | None) -> Iterator[str]:
    for one in differences[:limit]:
        yield f"    {one.tensor} ({one.where}): expected {one.expected or 'nothing'}, found {one.found or 'nothing'}"
    if limit is not None and (rest := len(differences) - limit) > 0:
        yield f"    and {rest} more; --all shows them"
