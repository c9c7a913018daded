"""Memory that samples have freed stays with a worker, for the next sample.

glibc gives the end of its heap back to the kernel when 128 KB of it are free, and takes blocks of 128 KB straight from
there, until it has seen large blocks freed. A worker that decodes an image frees some hundred KB a sample: it would
ask for the same pages anew each time, hundreds of page faults a batch.
"""

from __future__ import annotations

import ctypes
import os

_TRIM, _MAP = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
_LARGEST = 32 << 20  # bytes: how far glibc raises the second one by itself; the first one is twice that
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")


def keep_freed_memory() -> None:
    """Has this process keep what it frees, as glibc does by itself in time; not where the user has set it."""
    if any(name in os.environ for name in _SETTINGS) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_MAP, _LARGEST)
        mallopt(_TRIM, 2 * _LARGEST)
