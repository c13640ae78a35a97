"""Names with placeholders: matched against a name, or filled in."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBERS = frozenset({"layer", "expert"})
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def match_name(pattern: str, name: str) -> dict[str, str] | None:
    """What the placeholders of ``pattern`` stand for in ``name``; ``None`` if it is no such name.

    ``{layer}`` and ``{expert}`` stand for a number, any other placeholder for text without a dot.
    """
    match = _compiled(pattern).fullmatch(name)
    return None if match is None else match.groupdict()


def fill_name(pattern: str, values: Mapping[str, str | int]) -> str:
    """The name that ``pattern`` makes of its placeholders' values."""
    return pattern.format(**values)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    seen: set[str] = set()

    def group(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return f"(?P={name})"
        seen.add(name)
        return rf"(?P<{name}>\d+)" if name in _NUMBERS else rf"(?P<{name}>[^.]+)"

    parts: list[str] = []
    end = 0
    for match in _PLACEHOLDER.finditer(pattern):
        parts += [re.escape(pattern[end : match.start()]), group(match)]
        end = match.end()
    return re.compile("".join([*parts, re.escape(pattern[end:])]))
