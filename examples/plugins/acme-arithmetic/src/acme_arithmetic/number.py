"""What counts as an answer."""

from __future__ import annotations

import re

# Nine digits are enough for any sum here; int() of a very long text takes seconds.
_NUMBER = re.compile(r"-?[0-9]{1,9}")


def number(text: str) -> int | None:
    """The whole number that a text is, ``None`` if it is anything else."""
    stripped = text.strip()
    return int(stripped) if _NUMBER.fullmatch(stripped) else None
