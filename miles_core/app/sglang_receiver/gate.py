"""Keeps forward passes and writes to the weights apart, in one process of a server."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from miles_core.errors import WeightSyncError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Gate:
    """Either a forward pass or a writer is inside. ``reason`` says why there may be no forward pass at all."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._lock = threading.Lock()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Hold writers off during a forward pass.

        Raises:
            WeightSyncError: on weights that must not serve.
        """
        with self._lock:
            if self.reason is not None:
                raise WeightSyncError(
                    f"a forward pass was about to run while the engine is out of service: {self.reason}",
                    remedy="Pause generation before an update, and publish a whole update after one that failed.",
                )
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold forward passes off."""
        with self._lock:
            yield
