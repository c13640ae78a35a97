"""``miles plugins``, and its first sub-command: which plugins there are."""

from __future__ import annotations

import json as json_module
import sys
from collections import Counter
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from miles_core.plugins.hub import Hub
from miles_core.plugins.installed.policy import OWN, PluginPolicy
from miles_core.plugins.reference import HOOKS
from miles_core.plugins.resolve import kind_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miles_core.plugins.installed.standing import Listed

app = App(name="plugins", help="List, describe and check the installed plugins, or start a new one.")
# Import strings: a command's module is imported when that command runs, so that the others stay fast.
for _name, _help in {
    "show": "Load one plugin and describe what it is, where it comes from and which options it takes.",
    "doctor": """Show everything that is wrong with the plugins of this environment, each with a remedy.

Metadata, versions and names are checked, and every plugin is loaded, in child processes, so that one that hangs or
crashes is a row. Exits with 1 if anything is wrong.""",
    "lock": """Print which builds of which plugins are installed, or compare them with an earlier lock.

A run writes the lock of its config as `plugins.json`. With --check, the exit code is 1 if anything differs.""",
    "check": """Run the conformance suite of its kind on a plugin, and print each rule's outcome.

It runs in a process of its own. What a suite cannot know, such as an environment's own tasks, belongs into a test of
the plugin: a subclass of the suite, as `miles plugins new` writes it.

Needs pytest: `pip install "miles-hub[testing]"`.""",
    "new": "Write a new package with one plugin that works: its code, its test, a README, and a workflow.",
}.items():
    app.command(f"miles_core.cli.plugins_{_name}:{_name}", name=_name, help=_help)

_COLUMNS = ("kind", "name", "distribution", "version", "state", "target")
_PROBLEMS = 5
"""Problems that `list` spells out; `doctor` has them all."""
_SCREEN = 40
"""Rows that one still reads at once."""


@app.command(name="list")
def list_plugins(*, kind: str | None = None, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """List the installed plugins from their metadata, importing none of them.

    A config file names a plugin by NAME, or by DISTRIBUTION/NAME where several offer that name; `miles plugins show
    NAME` tells its options. States: `compatible`; `undeclared` does not say which versions of miles-hub it works with;
    `computed` is a module that adds plugins when a run starts; `incompatible`, `blocked` and `off` are left out.

    Parameters
    ----------
    kind
        Only plugins of this kind, such as reward_models.
    json
        Print one JSON object with the keys plugins and problems.
    """
    if kind not in (None, HOOKS):
        kind_named(kind)
    policy = PluginPolicy.of()
    hub = Hub.discover(policy.lenient())  # what is wrong is listed, and must not keep the list from being seen
    rows = [row for row in hub.listing if kind in (None, row.ref.kind)]
    if json:
        report = {"plugins": [{**_cells(row), "reason": row.reason or None} for row in rows], "problems": hub.problems}
        sys.stdout.write(json_module.dumps(report, indent=2) + "\n")
    else:
        sys.stdout.write(_table(rows) + _summary(rows, kind))
        sys.stderr.write(_warnings(hub.problems))
    return 1 if policy.strict and hub.problems else 0


def _cells(row: Listed) -> dict[str, str | None]:
    return {column: getattr(row.ref, column, row.state) for column in _COLUMNS}


def _table(rows: Sequence[Listed]) -> str:
    if not rows:
        return ""
    lines = [[column.upper() for column in _COLUMNS]]
    lines += [[_printable(cell or "") for cell in _cells(row).values()] for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    return "".join("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)


def _printable(text: str) -> str:
    """Metadata is a stranger's text: it must not steer the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _summary(rows: Sequence[Listed], kind: str | None) -> str:
    of_kind = f" of the kind {kind}" if kind else ""
    if not rows:
        return f"no plugins{of_kind}; install a distribution that offers one, or see `miles plugins new --help`\n"
    others = {row.ref.distribution for row in rows} - {OWN}
    origin = f"from {OWN} and {_count(len(others), 'other distribution')}" if others else f"all from {OWN}"
    hint = "" if kind or len(rows) <= _SCREEN else ", --kind KIND lists fewer"
    left_out = Counter((row.state, row.reason) for row in rows if row.left_out)
    return "".join(
        (
            f"\n{_count(len(rows), 'plugin')}{of_kind}, {origin}; `miles plugins show NAME` describes one{hint}\n",
            *(
                f"left out: {number} {state}, because {reason}\n"
                for (state, reason), number in sorted(left_out.items())
            ),
        )
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _warnings(problems: Sequence[str]) -> str:
    if not problems:
        return ""
    more = len(problems) - _PROBLEMS
    lines = [f"warning: {_printable(problem)}\n" for problem in problems[:_PROBLEMS]]
    return "".join((*lines, f"... and {more} more\n" if more > 0 else "", "run `miles plugins doctor` for all of it\n"))
