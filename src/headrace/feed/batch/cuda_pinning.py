"""Page-locked slabs: their mappings are registered with CUDA, so that copies to a device can run by themselves.

A mapping is registered when its slab is first handed to the user, once, and unregistered before it is unmapped. Only
the trainer's process does that; workers and the receiver never load CUDA.

A copy that the user started with ``non_blocking=True`` may still be reading when the last view of the slab dies. What
dies with CUDA's own page-locked memory waits for such copies; so does a slab here: a *fence* is put behind the work
that the current stream of every device in use has at that moment, and the slab is free when it was passed. A copy on
a stream of the user's own, whose batch dies while another stream is the current one, is not seen.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device, not just the current one


class CudaPinning:
    """Registers mappings of this process with CUDA.

    Args:
        fenced: whether the user starts copies of his own, so that slabs need a fence.
    """

    def __init__(self, *, fenced: bool) -> None:
        self._fenced = fenced
        self._owner = os.getpid()
        self._refused = False

    def register(self, address: int, size: int) -> bool:
        """Page-locks `size` bytes at an address.

        Returns:
            Whether it was done. When it cannot be done, a warning names the error, and no further mapping is tried:
            batches are then copied to page-locked memory of torch's.
        """
        if self._refused:
            return False
        import torch

        try:
            torch.cuda.check_error(_runtime().cudaHostRegister(address, size, _PORTABLE))
        except RuntimeError as error:  # a container may limit locked memory; a driver may not lock shared memory
            self._refused = True
            _clear_error()
            warnings.warn(
                f"batches are copied to page-locked memory, since their own cannot be locked: {error}", stacklevel=2
            )
            return False
        return True

    def unregister(self, address: int) -> None:
        """Undoes `register`, when no copy reads from there any more."""
        if sys.is_finalizing() or os.getpid() != self._owner:
            return  # the process ends, and CUDA with it; or this is a fork, whose CUDA is the parent's
        import torch

        for device in _devices():
            torch.cuda.synchronize(device)
        torch.cuda.check_error(_runtime().cudaHostUnregister(address))

    def fence(self) -> Callable[[], bool] | None:
        """Returns a function that tells whether the work that the devices have now is done; None when there is none."""
        if not self._fenced or sys.is_finalizing() or os.getpid() != self._owner:
            return None
        return _Fence()


def _runtime() -> Any:
    import torch

    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _clear_error() -> None:
    """Clears the last call's error with a kernel: otherwise CUDA reports it again when the next kernel starts."""
    import torch

    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda").add_(1)


class _Fence:
    def __init__(self) -> None:
        self._events: list[Any] | None = _record()

    def __call__(self) -> bool:
        if self._events is None:
            self._events = _record()
        return self._events is not None and all(event.query() for event in self._events)


def _record() -> list[Any] | None:
    """Records an event on each device's current stream; None while a graph is captured, which it would break."""
    import torch

    if torch.cuda.is_current_stream_capturing():
        return None
    return [torch.cuda.current_stream(device).record_event() for device in _devices()]


def _devices() -> list[int]:
    """Returns the devices that this process uses; to ask another one would take memory there."""
    import torch

    core: Any = torch._C
    return [device for device in range(torch.cuda.device_count()) if core._cuda_hasPrimaryContext(device)]
