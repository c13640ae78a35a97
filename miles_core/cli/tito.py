"""``miles tito``: what a chat template writes between a generated turn and the next."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from miles_core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from miles_core.session.tokenizer import ChatTokenizer

app = App(name="tito", help="Token in, token out: what follows a generated turn.")


@app.command
def next(file: Annotated[Path, Parameter(allow_leading_hyphen=True)], *, templates: Path | None = None) -> int:  # noqa: A001 - the name of the command
    """Read one generated turn per line and write the prompt of the next turn, one per line and in order.

    A line holds template (a path, or the text of one) or model (a directory), messages, generated (the sampled text,
    its stop at the end), stop (the text of the sampled stop token, null for a turn that was cut) and appended; where
    needed tools, template_kwargs and clock (an ISO time). The answer is {"prompt": ...}, with "ids" where the model
    has a tokenizer, or {"refused": reason}.

        miles tito next turns.jsonl > prompts.jsonl

    Parameters
    ----------
    file
        A JSONL file; - reads standard input.
    templates
        A folder of NAME.jinja files, where lines name templates instead of paths.
    """
    from miles_core.session.template.answer import Answerer
    from miles_core.session.template.rows import Row

    folders = [] if templates is None else [templates]
    answerer = Answerer([Path(), *folders, *([] if str(file) == "-" else [file.parent])])
    for number, line in _lines(file):
        try:
            answer = answerer.answer(Row.parse(json.loads(line)))
        except (ValueError, ConfigError) as error:
            what = "it is no JSON: " if isinstance(error, json.JSONDecodeError) else ""
            reason = error.message if isinstance(error, ConfigError) else str(error)
            remedy = error.remedy if isinstance(error, ConfigError) else "Run miles tito next --help for the fields."
            raise DataError(f"{file}, line {number}: {what}{reason}", remedy=remedy) from error
        sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
    return 0


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not blank, with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}: {error}", remedy="Name a JSONL file in UTF-8.") from error
    lines = text.split("\n")
    console = Console(file=sys.stderr)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(file.name, total=len(lines))
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line
            progress.update(bar, completed=number)


@app.command
def check(
    target: Path,
    *,
    overrides: Annotated[tuple[str, ...], Parameter(name="--set", negative=(), show_default=False)] = (),
    clock: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Prove what can follow a generated turn, and print the proof.

    Every kind of append is derived after varied conversations. The exit code is 1 if nothing can be appended.

        miles tito check models/my-model
        miles tito check chat_template.jinja --set eos_token=END

    Parameters
    ----------
    target
        A model directory, or the file of a template.
    overrides
        KEY=VALUE gives the template an argument, such as eos_token=END or enable_thinking=false.
    clock
        The time that the template is told, such as 2025-07-10T12:00:00; the machine's by default.
    as_json
        Print JSON.
    """
    from miles_core.session.template.boundary import Deriver
    from miles_core.session.template.describe import as_dict, describe
    from miles_core.session.template.encoding import TextEncoder
    from miles_core.session.template.load import load_template
    from miles_core.session.template.proof import prove

    if not target.exists():
        raise ConfigError(f"there is no {target}", remedy="Name a model directory or the file of a chat template.")
    template = load_template(target, dict(map(_argument, overrides)), _time(clock))
    tokenizer = _tokenizer(target)
    eos = template.variables.get("eos_token")
    known = [tokenizer.decode([each]) for each in tokenizer.stop_token_ids] if tokenizer else []
    stops = known or ([eos] if isinstance(eos, str) and eos else [])
    encoder = TextEncoder(tokenizer.tokenizer, template.source) if tokenizer else None
    proof = prove(Deriver(template), stops, encoder)
    if as_json:
        sys.stdout.write(json.dumps(as_dict(proof), indent=2) + "\n")
    else:
        sys.stdout.write(describe(str(target), proof))
    return 0 if proof.holds else 1


@app.command
def audit(
    record: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    *,
    model: Path,
    clock: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Compare recorded sessions with a fresh render, token by token.

    The prompt of every turn is held against what the chat template writes for the messages before it. Differences in
    special tokens and in the text of messages are bugs, and make the exit code 1. Differences in what was generated are
    expected: templates rewrite earlier answers, and the same text can be sampled in other tokens.

        curl -s http://127.0.0.1:8000/sessions/ID | miles tito audit - --model models/my-model

    Parameters
    ----------
    record
        What GET /sessions/ID answers: one session, or several, one per line; - reads standard input.
    model
        The directory of the model whose tokenizer and chat template the sessions used.
    clock
        The time that the template is told, such as 2025-07-10T12:00:00; by default the recorded one.
    as_json
        Print one JSON object per session.
    """
    from miles_core.cli.tito_audit import audit_file

    return audit_file(record, model, _time(clock), as_json=as_json)


def _argument(override: str) -> tuple[str, Any]:
    """A template argument; what is JSON is read as JSON, all else is text."""
    name, equals, value = override.partition("=")
    if not equals or not name:
        raise ConfigError(f"--set takes KEY=VALUE; got {override!r}", remedy="Write --set enable_thinking=false.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _time(clock: str | None) -> datetime | None:
    try:
        return None if clock is None else datetime.fromisoformat(clock)
    except ValueError as error:
        raise ConfigError(f"--clock {clock!r} is no ISO time", remedy="Write 2025-07-10T12:00:00.") from error


def _tokenizer(target: Path) -> ChatTokenizer | None:
    if not (target / "tokenizer.json").is_file():
        return None
    from miles_core.session.tokenizer import ChatTokenizer

    return ChatTokenizer.load(target)
