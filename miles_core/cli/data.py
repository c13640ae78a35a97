"""``miles data``: what a run would see of its data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from miles_core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.app.data_check import Findings, Target
    from miles_core.kinds.base import PluginContext
    from miles_core.plugins.hub import Hub
    from miles_core.types import Task

app = App(name="data", help="Look at data as a run would see it.")

_ROWS_PER_UPDATE = 256


@app.command
def check(
    *files: str,
    use: str | None = None,
    config: Path | None = None,
    overrides: Annotated[tuple[str, ...], Parameter(name="--set", negative=(), show_default=False)] = (),
) -> int:
    """Read every row of data files and tell what a run would see: bad rows, columns, the first tasks, prompt lengths.

    A bad row is named with its file and line and does not end the check. The exit code is 1 if there is any.

        miles data check tasks.jsonl
        miles data check questions.parquet --set data.columns.prompt=question --set data.columns.label=answer
        miles data check --config run.toml

    Parameters
    ----------
    files
        Files, or folders that the library datasets wrote. With --config they stand in for its data.path; without any,
        --config's own data is checked.
    use
        The data source; by default the suffix tells (.jsonl, .json, .csv, .parquet; a folder is huggingface).
    config
        A config file: its [data] options apply, and prompts are measured with its model's chat template.
    overrides
        KEY=VALUE replaces one value of the config, or without one sets an option, such as data.columns.prompt=question.
    """
    from miles_core.app import data_check
    from miles_core.cli.data_text import describe
    from miles_core.config.load import load_config
    from miles_core.plugins.hub import Hub
    from miles_core.plugins.installed.policy import PluginPolicy

    loaded = None if config is None else load_config(config, overrides)
    if loaded is not None:
        hub = Hub.discover(PluginPolicy.of(loaded.config.plugins))
        context = data_check.check_context(hub, loaded.base_dir)
        targets = data_check.targets_of_config(loaded, files, use)
    elif files:
        hub = Hub.discover()
        context = data_check.check_context(hub, Path.cwd())
        targets = data_check.targets_of_files(files, use, overrides)
    else:
        raise ConfigError("there is nothing to check", remedy="Name data files, or a config file with --config.")
    counter = None if loaded is None else data_check.prompt_counter(loaded)
    good = True
    for number, target in enumerate(targets):
        findings = _findings(hub, target, context, counter)
        sys.stdout.write("\n" * bool(number) + describe(target, findings, loaded))
        good = good and findings.good
    return 0 if good else 1


def _findings(hub: Hub, target: Target, context: PluginContext, counter: Callable[[Task], int] | None) -> Findings:
    from rich.console import Console
    from rich.progress import Progress

    from miles_core.app.data_check import Findings, inspect

    findings = Findings()
    console = Console(file=sys.stderr)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(target.name, total=1.0)
        try:
            for row in inspect(hub, target.table, context):
                findings.add(row, counter)
                if findings.rows % _ROWS_PER_UPDATE == 0:
                    progress.update(bar, completed=row.progress)
        except DataError as error:
            findings.failure = error  # the next file is still worth a look
    return findings
