"""What a starting server does, read from its log."""

from __future__ import annotations

IMPORTING = "importing SGLang"
_PHASES = (
    ("server_args=", "starting processes"),
    ("Load weight begin", "loading weights"),
    ("Load weight end", "allocating the key-value pool"),
    ("CUDA graph begin", "capturing CUDA graphs"),
    ("Memory pool end", "preparing the scheduler"),
    ("Application startup complete", "warming up"),
)


def phase_of(line: str) -> str | None:
    """The phase that a line of SGLang's log begins; ``None`` for all other lines."""
    return next((phase for mark, phase in _PHASES if mark in line), None)
