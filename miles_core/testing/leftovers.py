"""What a plugin leaves in folders that other processes use too."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

GONE_SECONDS = 5.0


class Leftovers:
    """Looks for files in a folder of one's own, and for whatever lies in ``places``, which are shared."""

    def __init__(self, own: Path, places: Sequence[str]) -> None:
        self._own = own
        self._places = [Path(place) for place in places]

    def present(self) -> set[Path]:
        """All that is there now."""
        own = {path for path in self._own.rglob("*") if path.is_file()}
        return own.union(*(place.rglob("*") for place in self._places))

    def left(self, before: set[Path], *, at_most: int = 0) -> list[Path]:
        """What is new since and stays, if it is more than ``at_most``: some programs clean up after dead processes.

        What other processes have open is theirs.
        """
        deadline = time.monotonic() + GONE_SECONDS
        new = self.present() - before
        while len(new) > at_most and time.monotonic() < deadline:
            time.sleep(0.05)
            new = {path for path in new if path.exists()}
        return sorted(new - _used_by_others(new)) if len(new) > at_most else sorted(new)


def _used_by_others(paths: Iterable[Path]) -> set[Path]:
    wanted = {str(path): path for path in paths}
    used: set[Path] = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            used.update(wanted[name] for name in _open_files(process) if name in wanted)
    return used


def _open_files(process: Path) -> Iterator[str]:
    """What a process has mapped or open; one that has ended, or is not ours to look at, has nothing."""
    with suppress(OSError):
        for line in (process / "maps").read_text("utf-8", "replace").splitlines():
            yield line.partition("/")[1] + line.partition("/")[2]
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                yield str(descriptor.readlink())
