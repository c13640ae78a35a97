"""``miles report``: one HTML page of a run."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from miles_core.errors import CheckpointError
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.telemetry.episodes import episode_files
from miles_core.telemetry.find import find_run
from miles_core.telemetry.report.page import write_report
from miles_core.telemetry.report.vocabulary import Spelling


def report(
    run: str,
    /,
    *,
    output: Path | None = None,
    open_page: Annotated[bool, Parameter(name="--open", negative=())] = False,
) -> None:
    """Write one HTML page with a run's plots, config and episodes; the run may still go on.

    Parameters
    ----------
    run
        The folder of a run, its id below runs/, or `latest`.
    output
        The page's file; by default report.html in the folder of the run.
    open_page
        Open the page in the browser.
    """
    run_dir = find_run(run)
    path = (output or run_dir / "report.html").expanduser().resolve()
    spelling, notes = _spelling(run_dir)
    try:
        write_report(run_dir, path, spelling, notes=notes)
    except OSError as error:
        raise CheckpointError(
            f"cannot write the report {path}: {error.strerror}", remedy="Give a writable file with --output."
        ) from error
    print(path)  # noqa: T201
    if open_page:
        webbrowser.open(path.as_uri())


def _spelling(run_dir: Path) -> tuple[Spelling | None, list[str]]:
    """The run's tokenizer, or why there is none; it is loaded only where there are tokens to show."""
    if not episode_files(run_dir):
        return None, []
    path = run_dir / "checkpoints" / "step-0"
    try:
        chat = ChatTokenizer.load(path)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a tokenizer's files, the rest can be shown
        cause = str(error).splitlines()[0]
        return None, [f"tokens are shown as ids, since no tokenizer could be loaded from checkpoints/step-0: {cause}"]
    return Spelling(chat.decode, lambda token: str(chat.tokenizer.convert_ids_to_tokens(token))), []
