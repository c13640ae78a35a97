"""Something that is wrong with an installed plugin."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One sentence without its full stop, and what to do about it; ``distribution`` is whose plugins it concerns."""

    text: str
    remedy: str
    distribution: str = ""

    def __str__(self) -> str:
        return f"{self.text}. {self.remedy}"
