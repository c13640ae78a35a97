"""What the processes of this engine tell the one that started them: the lines that `EngineCommand` describes."""

from __future__ import annotations

import json
import os
from typing import Any

READY_FD = "MILES_READY_FD"


class Report:
    """Writes lines for the process that waits; writes nothing where a person typed the command."""

    def __init__(self) -> None:
        descriptor = os.environ.pop(READY_FD, None)
        self._file = None if descriptor is None else os.fdopen(int(descriptor), "w")
        self.is_child = descriptor is not None
        self._progress = ""

    def progress(self, text: str) -> None:
        """Say what the server does now, once."""
        if text != self._progress:
            self._progress = text
            self._write({"progress": text})

    def ready(self, url: str, *, foreign_weights: bool = False) -> None:
        """Say that the server serves; nothing can be said after that."""
        self._write({"url": url, **({"foreign_weights": True} if foreign_weights else {})})
        self.close()

    def failed(self, message: str, remedy: str | None) -> None:
        """Say why the server does not serve."""
        self._write({"error": message, "remedy": remedy})
        self.close()

    def close(self) -> None:
        """Let the process that waits know that no more comes."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
