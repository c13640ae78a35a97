"""Where the ranks of a server listen: unix sockets in a folder that only their user may enter."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_VARIABLE = "MILES_WEIGHTS_FOLDER"


def make_folder() -> None:
    """Make it, in a server's first process; those that it starts find it, and it goes with the first."""
    if _VARIABLE not in os.environ:
        folder = tempfile.mkdtemp(prefix="miles-weights-")  # mode 0700
        os.environ[_VARIABLE] = folder
        atexit.register(_remove, folder, os.getpid())


def socket_of(rank: int) -> Path:
    """The socket of a rank."""
    return Path(os.environ[_VARIABLE]) / f"{rank}.sock"


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a process that was forked
        shutil.rmtree(folder, ignore_errors=True)
