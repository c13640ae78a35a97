"""The findings of ``miles data check`` as text."""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.app.data_check import Findings, Target
    from miles_core.config.load import LoadedConfig
    from miles_core.types import Task

_SHOWN_CHARACTERS = 400


def describe(target: Target, findings: Findings, loaded: LoadedConfig | None) -> str:
    """Rows, bad rows, columns, first tasks and prompt lengths, in this order."""
    rows = "1 row" if findings.rows == 1 else f"{findings.rows} rows"
    lines = [f"{target.name} (use = {target.table.use}): {rows}, {findings.bad} bad"]
    if findings.failure is not None:
        lines += [f"  reading ended: {findings.failure}"]
    lines += [*_bad_rows(findings), *_columns(findings)]
    for where, task in findings.tasks:
        lines += ["", *_task(where, task)]
    if loaded is not None and findings.prompt_tokens:
        lines += ["", *_lengths(target, findings.prompt_tokens, loaded)]
    return "\n".join(lines) + "\n"


def _bad_rows(findings: Findings) -> Iterator[str]:
    if findings.problems:
        yield "\nbad rows"
        yield from (f"  {problem}" for problem in findings.problems)
        if more := findings.bad - len(findings.problems):
            yield f"  and {more} more"


def _columns(findings: Findings) -> Iterator[str]:
    if not findings.columns:
        return
    yield "\ncolumns"
    width = max(len(column) for column in findings.columns)
    for column, kinds in findings.columns.items():
        present = sum(kinds.values()) - kinds["null"]
        types = ", ".join(f"{kind} ({count})" if len(kinds) > 1 else kind for kind, count in kinds.most_common())
        yield f"  {column.ljust(width)}  {100 * present / findings.rows:5.1f} % of rows  {types}"


def _task(where: str, task: Task) -> Iterator[str]:
    yield f"{where}  id {task.id}"
    facts: list[tuple[str, object]] = [
        *((message.role, message.text) for message in task.messages),
        ("label", task.label),
        ("environment", task.environment),
        ("images", ", ".join(task.images)),
        ("tools", len(task.tools)),
        ("metadata", json.dumps(task.metadata, ensure_ascii=False, default=repr) if task.metadata else None),
    ]
    for name, value in facts:
        if value not in (None, "", 0):
            yield f"  {name:<12} {_short(str(value))}"


def _short(text: str) -> str:
    text = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text[: _SHOWN_CHARACTERS + 1]
    )
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _lengths(target: Target, tokens: list[int], loaded: LoadedConfig) -> Iterator[str]:
    longest, context = target.table.max_prompt_tokens, loaded.config.rollout.max_context_tokens
    yield f"prompt tokens, with the chat template of {loaded.config.model.path}"
    yield f"  min {min(tokens)}, median {median(tokens):g}, max {max(tokens)}"
    if longest is not None:
        yield f"  {sum(n > longest for n in tokens)} exceed data.max_prompt_tokens = {longest}, and are left out"
    yield f"  {sum(n >= context for n in tokens)} leave no room in rollout.max_context_tokens = {context}"
