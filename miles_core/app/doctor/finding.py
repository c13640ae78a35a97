"""What one check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "missing", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One row: what was looked at, how it is, what was found, and what to do about it.

    ``missing`` is optional and absent, ``problem`` is there and wrong. ``required``: no run works while it is not ok.
    """

    name: str
    state: State
    found: str
    remedy: str = ""
    required: bool = False

    @property
    def is_fatal(self) -> bool:
        """Whether no run works because of it."""
        return self.required and self.state != "ok"
