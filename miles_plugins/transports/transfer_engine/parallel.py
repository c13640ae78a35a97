"""Blocking calls side by side."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


def in_parallel(calls: Sequence[Callable[[], T]], seconds: float | None = None) -> list[T | None]:
    """What each call returns, in order; ``None`` of one that is not back after ``seconds``.

    Such a call keeps its thread, which dies with the process: Mooncake waits a minute for a peer that never answered.
    """
    results: list[T | None] = [None] * len(calls)
    failures: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = calls[index]()
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    until = None if seconds is None else time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(None if until is None else max(until - time.monotonic(), 0))
    if failures:
        raise failures[0]
    return list(results)
