"""The C library's allocator, which keeps freed memory for later unless it is asked not to."""

from __future__ import annotations

import ctypes
import sys


def return_free_memory() -> None:
    """Hand freed pages back to the system, where the C library is glibc; it keeps some per cent of them otherwise."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
