"""Places in a GPU's work, with their times: CUDA events, without waiting for the device.

An event is put behind the work that the current stream of this thread has so far, and is passed when that is done. The
time between two of them is read later, when both have been passed. So the GPU is never made to wait, nor the thread.
Work that the user starts on other streams than the current one is not seen, unless the current one waits for it.

torch is not imported here: without it, or before CUDA is in use, there is nothing to measure.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol


class TimedMark(Protocol):
    """A place in a device's work."""

    def query(self) -> bool:
        """Says whether everything before it is done."""

    def elapsed_time(self, end: Any) -> float:
        """Returns the milliseconds from this place to another one; both have been passed."""


def mark() -> TimedMark | None:
    """Puts an event behind the work of the current stream.

    Returns:
        None without CUDA; when the process uses several devices and the current one is none of them; and while a graph
        is captured, which would be broken by it.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized() or cuda.is_current_stream_capturing():
        return None
    device = _device(cuda)
    if device is None:
        return None
    event: TimedMark = cuda.Event(enable_timing=True)
    event.record(cuda.current_stream(device))  # type: ignore[attr-defined]
    return event


def _device(cuda: Any) -> int | None:
    """Returns the device in use: the current one, or the only one that has a context."""
    core: Any = sys.modules["torch"]._C
    current: int = cuda.current_device()
    if core._cuda_hasPrimaryContext(current):
        return current
    used = [device for device in range(cuda.device_count()) if core._cuda_hasPrimaryContext(device)]
    return used[0] if len(used) == 1 else None
