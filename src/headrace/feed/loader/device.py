"""Batches on an accelerator: copied on a side stream, one batch ahead of the training loop.

The copy of a batch is started when the batch before it is handed over, if it has arrived by then; the loader does not
wait for it. The consumer's stream, not its thread, waits for the copy. The host's memory of a batch is held until its
copy is done, and only then can its slab be used again, whatever happens to the Python objects.

`DeviceBatches` knows order, lifetime and position, and uses a `PlainDevice` for everything else, which hides torch's
devices.
"""

from __future__ import annotations

import collections
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from headrace.errors import FeedError
from headrace.feed.batch import pytree
from headrace.feed.batch.slab import CudaPinning
from headrace.feed.batch.tensors import is_tensor
from headrace.feed.loader.supply import Supply
from headrace.feed.plan.bookmark import Place, Progress

if TYPE_CHECKING:
    import torch


class Mark(Protocol):
    """A place in the accelerator's work."""

    def query(self) -> bool:
        """Says whether everything before it is done."""

    def synchronize(self) -> None:
        """Waits until everything before it is done."""


class _Passed:
    """The mark of a device that does everything at once."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class PlainDevice:
    """What a device does for a feed; this one of torch has no streams. Copies are done in the order of their start.

    Args:
        device: which.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def start(self, leaf: Any) -> Any:
        """Starts to copy a host tensor on the side stream and returns the copy; returns anything else as it is."""
        return leaf.to(self._device) if is_tensor(leaf) else leaf

    def mark(self) -> Mark:
        """Returns the place behind all copies that were started."""
        return _Passed()

    def wait(self, mark: Mark) -> None:
        """Has the consumer's stream wait for a mark; the calling thread does not wait."""

    def land(self, leaf: Any) -> Any:
        """Makes what `start` returned the consumer's, in its stream; may start to move an object of another type."""
        return leaf if is_tensor(leaf) or not _moves_itself(leaf) else _moved(leaf, self._device)

    def landed(self) -> Mark | None:
        """Returns the place behind the objects that `land` moved since this was asked; None if there are none."""
        return None


class _Started(NamedTuple):
    """A batch that was fetched, or what came in its place (None: the end), and the position behind it."""

    outcome: tuple[Any, int] | Exception | None
    place: Place
    mark: Mark | None = None
    begun: Mark | None = None


class DeviceBatches(Supply):
    """See the module.

    Args:
        batches: where the batches come from.
        fetched: how far those are.
        progress: how far the user is; kept here.
        accelerator: where the batches go.
        copied: called with the places before and behind the copy of a batch that is handed over, or None.
    """

    size: int | None = None

    def __init__(
        self,
        batches: Supply,
        fetched: Progress,
        progress: Progress,
        accelerator: PlainDevice,
        copied: Callable[[Any, Any], None] | None = None,
    ) -> None:
        self._batches = batches
        self._fetched = fetched
        self._progress = progress
        self._accelerator = accelerator
        self._copied = copied
        self._ahead: _Started | None = None
        self._held: collections.deque[tuple[Mark, Any]] = collections.deque()  # batches whose copies may be under way

    def ready(self) -> bool:
        """Whether `fetch` would return at once."""
        return self._ahead is not None or self._batches.ready()

    def queued(self) -> int:
        """The batch that is being copied, and those behind it."""
        ahead = self._ahead is not None and isinstance(self._ahead.outcome, tuple)
        return int(ahead) + self._batches.queued()

    def fetch(self) -> tuple[Any, int] | None:
        """Returns the next batch, on the device, and starts to copy the one behind it if that is there."""
        while self._held and self._held[0][0].query():
            self._held.popleft()
        started, self._ahead = self._ahead or self._start(), None
        if isinstance(started.outcome, Exception):
            self._progress.move(started.place)
            try:
                raise started.outcome
            finally:
                del started  # it would keep the error, and the error this frame
        if started.outcome is None:
            return None
        data, rows = started.outcome
        assert started.mark is not None
        if self._copied is not None:
            self._copied(started.begun, started.mark)
        self._accelerator.wait(started.mark)
        try:
            landed = _mapped(data, self._accelerator.land)
        finally:  # also when the device has no memory for the second of its objects
            behind = self._accelerator.landed()
            if behind is not None:
                self._held.append((behind, data))
        self._ahead = self._start_ready()
        self._progress.move(started.place)
        return landed, rows

    def _start_ready(self) -> _Started | None:
        """Starts the batch that follows if it is there. An error is kept for its turn."""
        try:
            return self._start() if self._batches.ready() else None
        except Exception as error:  # noqa: BLE001 - raised by the fetch whose batch it is
            return _Started(error, self._fetched.place)

    def _start(self) -> _Started:
        try:
            item = self._batches.fetch()
        except Exception as error:  # noqa: BLE001 - likewise
            return _Started(error, self._fetched.place)
        if item is None:
            return _Started(None, self._fetched.place)
        begun = None if self._copied is None else self._accelerator.mark()
        try:
            data = _mapped(item[0], self._accelerator.start)
        finally:  # also when the device has no memory for the second of its tensors
            mark = self._accelerator.mark()
            self._held.append((mark, item[0]))
        return _Started((data, item[1]), self._fetched.place, mark, begun)

    def end(self, *, complete: bool) -> None:
        """Waits for the copies under way, a moment, and lets go of the batches."""
        try:
            while self._held:
                self._held[0][0].synchronize()
                self._held.popleft()
        finally:
            self._ahead = None
            self._batches.end(complete=complete)


def _mapped(batch: Any, function: Any) -> Any:
    """Applies a function to the leaves of a batch."""

    def leaf(item: Any) -> Any:
        if isinstance(item, np.ndarray):  # it stays on the host, and would hold the slab as long as the user keeps it
            return item if item.base is None else item.copy()
        return function(item)

    return pytree.mapped(batch, leaf, whole="to")


# torch's devices


class StreamDevice(PlainDevice):
    """A device of torch with streams.

    Args:
        device: with its index.
        timed: whether the time between two marks can be read.
    """

    def __init__(self, device: torch.device, *, timed: bool = False) -> None:
        import torch

        super().__init__(device)
        self._timed = timed
        self._moves = False  # objects are on their way in the consumer's stream
        self._module: Any = getattr(torch, device.type)
        self._side = self._module.Stream(device)

    def start(self, leaf: Any) -> Any:
        """Copies a dense tensor from page-locked memory, into which it is copied first if it is not there."""
        if not _is_host_tensor(leaf):
            return leaf
        with self._module.stream(self._side):
            return leaf.pin_memory().to(self._device, non_blocking=True)

    def mark(self) -> Mark:
        """Records an event on the side stream."""
        event: Mark = self._side.record_event(self._module.Event(enable_timing=True) if self._timed else None)
        return event

    def wait(self, mark: Mark) -> None:
        """Has the current stream of the device wait."""
        self._module.current_stream(self._device).wait_event(mark)

    def land(self, leaf: Any) -> Any:
        """Notes the stream that uses a tensor; moves objects of other types, without waiting if they can do so.

        Where an object has its tensors is not known, so nobody could note the stream that uses them: it is moved in the
        consumer's stream, not ahead.
        """
        if not is_tensor(leaf):
            if not _moves_itself(leaf):
                return leaf
            self._moves = True
            return _moved(leaf.pin_memory() if hasattr(leaf, "pin_memory") else leaf, self._device)
        if leaf.device != self._device:
            return leaf.to(self._device)
        leaf.record_stream(self._module.current_stream(self._device))
        return leaf

    def landed(self) -> Mark | None:
        """Records an event on the current stream."""
        if not self._moves:
            return None
        self._moves = False
        event: Mark = self._module.current_stream(self._device).record_event()
        return event


def _is_host_tensor(leaf: Any) -> bool:
    import torch

    return isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.layout is torch.strided


def _moves_itself(leaf: Any) -> bool:
    return hasattr(leaf, "to") and not isinstance(leaf, (np.ndarray, np.generic))


def _moved(leaf: Any, device: torch.device) -> Any:
    """Moves an object with its own method `to`, which may do so in place and return nothing."""
    moved = leaf.to(device, non_blocking=True) if _takes_non_blocking(leaf.to) else leaf.to(device)
    return leaf if moved is None else moved


def _takes_non_blocking(method: Callable[..., Any]) -> bool:
    try:
        inspect.signature(method).bind(None, non_blocking=True)
    except (TypeError, ValueError):  # it has no such argument, or no signature
        return False
    return True


def find_device(asked: str | torch.device | None) -> torch.device | None:
    """Returns the device that batches go to; None for the host, where they are.

    Raises:
        FeedError: torch has no such device here.
    """
    if asked is None:
        return None
    import torch

    try:
        device = torch.device(asked)
    except (RuntimeError, TypeError) as error:
        raise FeedError(f"device={asked!r} is no device of torch: {error}", hint=_hint()) from error
    if device.type == "cpu":
        return None
    count = _counts().get(device.type, 0)
    if (device.index or 0) >= count:
        raise FeedError(f"device={str(device)!r} is not available: torch sees {count} of that kind here", hint=_hint())
    return device


def _counts() -> dict[str, int]:
    """Returns how many devices torch has of each kind."""
    import torch

    counts = {"cuda": torch.cuda.device_count()} if torch.cuda.is_available() else {}
    if hasattr(torch, "accelerator") and torch.accelerator.is_available():
        found = torch.accelerator.current_accelerator()
        if found is not None:
            counts[found.type] = torch.accelerator.device_count()
    return counts


def _hint() -> str:
    import torch

    names = [name if count == 1 else f"{name}:0..{count - 1}" for name, count in _counts().items()]
    there = f"here are cpu, {', '.join(names)}" if names else "here is only cpu"
    build = "" if names or torch.version.cuda else f"; this torch ({torch.__version__}) was built without CUDA"
    return f"{there}{build}; leave device= out to get batches on the host"


def find_pinning(device: torch.device | None, *, pin: bool) -> CudaPinning | None:
    """Returns what page-locks a loader's slabs, if they should be.

    Args:
        device: where its batches go; None for the host.
        pin: whether the user asks for page-locked batches, to copy them himself.
    """
    if device is not None:
        return CudaPinning(fenced=False) if device.type == "cuda" else None
    if not pin:
        return None
    import torch

    return CudaPinning(fenced=True) if torch.cuda.is_available() else None


def open_device(device: torch.device, *, timed: bool = False) -> PlainDevice:
    """Returns a device to copy to; one without an index is the current one of its kind.

    Args:
        device: which.
        timed: whether the time between two of its marks can be read: with CUDA.
    """
    import torch

    module: Any = getattr(torch, device.type, None)
    if not all(hasattr(module, name) for name in ("Stream", "current_stream", "stream")):
        return PlainDevice(device)
    index = module.current_device() if device.index is None else device.index
    return StreamDevice(torch.device(device.type, index), timed=timed)
