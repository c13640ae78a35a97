"""The exception that ended a server, found in its log."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_START = "Traceback (most recent call last):"
_ENTRY = re.compile(r"^\[\d{4}-\d\d-\d\d ")
_CHAIN = ("The above exception was", "During handling of the above")
_FATAL = "hit an exception"
_DYING = re.compile("kill_process_tree|sigquit", re.IGNORECASE)
MESSAGE_LINES = 6


def cause_of(lines: Sequence[str]) -> str | None:
    """The exception that ended the server.

    The first that a process of it did not survive is the cause of all that follows. Otherwise it is the last one, if
    the server did nothing after it: SGLang also logs exceptions that it survives.
    """
    starts = [number for number, line in enumerate(lines) if _START in line]
    for number in starts:
        if _FATAL in lines[number]:
            return _message(lines, number)
    if not starts:
        return None
    chain = next((number for number in reversed(starts) if not _is_chained(lines, number)), starts[0])
    went_on = any(_ENTRY.match(line) and not _DYING.search(line) for line in lines[chain + 1 :])
    return None if went_on else _message(lines, chain)


def _is_chained(lines: Sequence[str], start: int) -> bool:
    """Whether the traceback follows from the one before it."""
    return any(line.startswith(_CHAIN) for line in lines[max(0, start - 2) : start])


def _message(lines: Sequence[str], start: int) -> str | None:
    """The text of the last exception of the chain whose first traceback starts here, its first lines."""
    found: list[str] = []
    for line in takewhile(lambda line: not _ENTRY.match(line), lines[start + 1 :]):
        if _START in line or line.startswith(_CHAIN):
            found = []
        elif line.startswith(" ") and not found:  # a frame
            continue
        elif line.strip():
            found.append(line)
    return " ".join(" ".join(found[:MESSAGE_LINES]).split()) or None
