"""What a run would see of its data: every row looked at, good or bad."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from miles_core.config.overrides import apply_overrides
from miles_core.config.schema import DataTable
from miles_core.config.tables import PluginTable
from miles_core.errors import ConfigError, DataError, SessionError
from miles_core.kinds.base import PluginContext
from miles_core.kinds.data_sources import InspectedRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from miles_core.config.load import LoadedConfig
    from miles_core.kinds.data_sources import DataSource
    from miles_core.plugins.hub import Hub
    from miles_core.types import Task

PROBLEMS_KEPT = 20
TASKS_KEPT = 3
MAX_TAKEN = 100_000
"""Tasks taken of a source that cannot be inspected, in case its first epoch never ends."""

_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to check: its name for people, and the table that reads it."""

    name: str
    table: DataTable


@dataclass(eq=False)
class Findings:
    """What the rows of one target are like; ``columns`` counts types by column, ``failure`` says why reading ended."""

    rows: int = 0
    bad: int = 0
    problems: list[str] = field(default_factory=list)
    columns: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    tasks: list[tuple[str, Task]] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    failure: DataError | None = None

    @property
    def good(self) -> bool:
        """Whether a run could use all of it."""
        return self.rows > 0 and self.bad == 0 and self.failure is None

    def add(self, row: InspectedRow, prompt_tokens: Callable[[Task], int] | None = None) -> None:
        """Count a row; ``prompt_tokens`` measures its prompt."""
        self.rows += 1
        for column, kind in row.columns.items():
            self.columns[column][kind] += 1
        problem: str | None = row.problem
        if row.task is not None and prompt_tokens is not None:
            try:
                self.prompt_tokens.append(prompt_tokens(row.task))
            except SessionError as error:
                problem = error.message
        if row.task is not None and not problem:
            problem = _not_passed_on(row.task)
        if problem:
            self.bad += 1
            if len(self.problems) < PROBLEMS_KEPT:
                self.problems.append(f"{row.where()}: {problem}")
        elif row.task is not None and len(self.tasks) < TASKS_KEPT:
            self.tasks.append((row.where(), row.task))


def _not_passed_on(task: Task) -> str | None:
    """What a run would refuse in its episodes."""
    brought = [name for name, value in (("images", task.images), ("tools", task.tools)) if value]
    return f"it brings {' and '.join(brought)}, which this version does not pass to the model" if brought else None


def targets_of_config(loaded: LoadedConfig, files: Sequence[str], use: str | None) -> list[Target]:
    """The ``[data]`` table of a config, or that table with each of ``files`` in place of its path."""
    table = loaded.config.data
    if not files:
        return [Target(f"[data] of {loaded.path.name}", table)]
    written = table.model_dump(exclude_none=True)
    return [_target(file, {**written, "use": use or table.use}) for file in files]


def targets_of_files(files: Sequence[str], use: str | None, overrides: Sequence[str]) -> list[Target]:
    """One table per file, by its suffix, with the options that ``data.KEY=VALUE`` overrides name.

    Raises:
        ConfigError: if nothing tells how to read a file, or an override is not one of ``data``.
    """
    document: dict[str, Any] = {"data": {}}
    apply_overrides(document, overrides)
    if set(document) != {"data"}:
        raise ConfigError(
            f"--set {' '.join(overrides)}: only keys of data have a meaning without --config",
            remedy="Write --set data.KEY=VALUE, or name a config file with --config.",
        )
    options = document["data"]
    return [_target(file, {**options, "use": use or options.get("use") or guess_use(file)}) for file in files]


def guess_use(file: str) -> str:
    """The name of the source that reads a file, by its suffix.

    Raises:
        ConfigError: if the suffix says nothing.
    """
    path = Path(file).expanduser()
    if path.is_dir():
        return "huggingface"
    if ":" in file and not path.exists():
        return "iterable"
    suffixes = [suffix for suffix in path.suffixes if suffix in _SUFFIXES]  # tasks.jsonl.gz gets a better error there
    if not suffixes:
        raise ConfigError(
            f"the name {path.name} does not tell its format", remedy="Add --use jsonl, csv, parquet or another source."
        )
    return _SUFFIXES[suffixes[-1]]


def check_context(hub: Hub, base_dir: Path) -> PluginContext:
    """What sources get here: the folder of relative paths, and the services that make and inspect nested sources."""

    def build_source(options: Mapping[str, Any]) -> DataSource:
        made: DataSource = hub.build("data_sources", PluginTable.model_validate(options), context)
        return made

    def inspect_source(options: Mapping[str, Any]) -> Iterator[InspectedRow]:
        return inspect(hub, PluginTable.model_validate(options), context)

    services = {"base_dir": base_dir, "build_source": build_source, "inspect_source": inspect_source}
    context = PluginContext(services=services)
    return context


def inspect(hub: Hub, table: PluginTable, context: PluginContext) -> Iterator[InspectedRow]:
    """Every row of a table's source; where it cannot be inspected, the tasks of its first epoch.

    Raises:
        MilesError: if the source or an option of it is wrong, or a file is unreadable as a whole.
    """
    factory = hub.load(hub.resolve("data_sources", table.use))
    config = hub.configure("data_sources", table)
    if hasattr(factory, "inspect"):
        yield from factory.inspect(config, context)
    else:
        yield from _taken(hub.create("data_sources", table.use, config, context))


def prompt_counter(loaded: LoadedConfig) -> Callable[[Task], int]:
    """Counts the tokens of a task's prompt as the sessions of a config do.

    Raises:
        ConfigError: if the model has no tokenizer.
    """
    from miles_core.app.functions import session_renderer
    from miles_core.session.tokenizer import ChatTokenizer

    tokenizer = ChatTokenizer.load(loaded.resolve(loaded.config.model.path))
    renderer = session_renderer(loaded.config.session, tokenizer)
    return lambda task: len(renderer.prompt(task.messages, task.tools))


def _target(file: str, options: dict[str, Any]) -> Target:
    path = file if options["use"] == "iterable" else str(Path(file).expanduser().absolute())
    return Target(file, DataTable.model_validate({**options, "path": path}))


def _taken(source: DataSource) -> Iterator[InspectedRow]:
    for number in count(1):
        try:
            fresh = source.take(1)
        except DataError as error:
            yield InspectedRow(partial("task {}".format, number), {}, None, error.message)
            return
        if not fresh or fresh[0][0] > 0 or number > MAX_TAKEN:
            return
        yield InspectedRow(partial("task {}".format, number), {}, fresh[0][1])
