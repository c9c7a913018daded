"""A quick measurement of the feed on one machine, beside torch's DataLoader and beside what the machine can do at all.

Every contender delivers the same bytes to one consumer in this process, which takes batch after batch and does not read
them. They are measured in turns: a window of each, then the next round, so that a machine that is busy with other
things slows all of them. What was prefetched while the others had their turn is taken, and thrown away, before the
clock starts. Each is a context manager that gives an endless stream of batches and leaves no process behind. The limits
are no loaders: `memcpy` copies a batch with one thread, and `raw_socket` receives the bytes of a batch into buffers
that are used again and again, from a process that sends one buffer again and again. CPU time is that of this process
and all processes below it, workers, receivers and senders included.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from headrace.child_python import module_command
from headrace.feed.loader.data_loader import DataLoader
from headrace.feed.pipelines.factory import Pipeline, pipeline
from headrace.measuring.loopback import START_SECONDS, cpu_seconds, feed_server

Stream = Iterator[Any]


def endless(loader: Iterable[Any]) -> Generator[Any, None, None]:
    """Goes over a loader again and again."""
    while True:
        yield from loader


@contextmanager
def shared_memory(dataset: Any, **options: Any) -> Iterator[Stream]:
    """headrace's DataLoader with workers of its own. `options` are its arguments."""
    with DataLoader(dataset, **options) as loader:
        yield endless(loader)


@contextmanager
def over_tcp(pipeline: Pipeline[Any], executors: int, *, code: Path | None = None, **options: Any) -> Iterator[Stream]:
    """headrace's DataLoader with a feed server on loopback, which has so many executors."""
    with (
        feed_server(executors, code=code) as server,
        DataLoader(pipeline, workers=server.address, secret_file=server.secret_file, **options) as loader,
    ):
        yield endless(loader)


@contextmanager
def torch_loader(dataset: Any, **options: Any) -> Iterator[Stream]:
    """torch's DataLoader. `options` are its arguments."""
    from torch.utils.data import DataLoader as TorchLoader

    with closing(endless(TorchLoader(dataset, **options))) as stream:  # its workers end with the stream
        yield stream


@contextmanager
def memcpy(size: int, slots: int = 1) -> Iterator[Stream]:
    """Copies `size` bytes into some buffers in turn, in this process."""
    source, targets = np.ones(size, np.uint8), [np.zeros(size, np.uint8) for _ in range(slots)]
    yield (_copied(source, target) for target in itertools.cycle(targets))


def _copied(source: Any, target: Any) -> Any:
    np.copyto(target, source)
    return target


@contextmanager
def raw_socket(size: int) -> Iterator[Stream]:
    """Receives `size` bytes at a time from a process on this machine that sends the same bytes again and again."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        command = module_command("headrace.measuring.windows", "--send", str(port), str(size))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            listener.settimeout(START_SECONDS)
            connection, _ = listener.accept()
            with closing(connection):
                yield received(connection, [memoryview(bytearray(size))])
        finally:
            process.kill()
            process.wait()


def received(connection: socket.socket, slots: list[memoryview]) -> Stream:
    """Fills some buffers in turn from a connection. Raises ConnectionError when the sender has ended."""
    for slot in itertools.cycle(slots):
        filled = 0
        while filled < len(slot):
            count = connection.recv_into(slot[filled:])
            if not count:
                raise ConnectionError("the sender has ended")
            filled += count
        yield slot


def _send(port: int, size: int) -> None:
    """The sender of `raw_socket`: sends one buffer until the receiver closes."""
    buffer = bytes(size)
    with socket.create_connection(("127.0.0.1", port)) as connection, contextlib.suppress(ConnectionError):
        while True:
            connection.sendall(buffer)


SAMPLES = 10_000_000  # no window comes to the end of it
DRAINED = 32  # batches thrown away before a window; more than any contender prefetches
TORCH = "torch DataLoader"


@dataclass(frozen=True)
class Shape:
    """What is delivered.

    Attributes:
        name: for tables.
        sample_bytes: bytes of a sample's array.
        batch: samples of a batch; None for single samples (`batch_size=None`).
        workers: worker processes of every loader.
    """

    name: str
    sample_bytes: int
    batch: int | None
    workers: int

    @property
    def bytes(self) -> int:
        """Bytes of a batch."""
        return self.sample_bytes * (self.batch or 1)


SHAPES = (
    Shape("19 MB", 19_267_584, None, 1),  # 128 RGB images of 224 x 224
    Shape("150 KB", 150_528, None, 1),  # one of them
    Shape("64 x 3 KB", 3_072, 64, 2),  # images of 32 x 32
)


@dataclass(frozen=True)
class Window:
    """One turn of one contender. `seconds` of wall time, `cpu` seconds of all processes together."""

    shape: str
    contender: str
    round: int
    batches: int
    bytes: int
    seconds: float
    cpu: float


class Copies:
    """A dataset that costs what a copy costs: fresh memory for every sample, filled from a source."""

    def __init__(self, size: int) -> None:
        self._source: NDArray[np.uint8] = np.arange(size // 4 + 1, dtype=np.uint32).view(np.uint8)[:size]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        sample: NDArray[np.uint8] = self._source.copy()
        return sample


@pipeline
def copies(size: int) -> Copies:
    """The pipeline of `Copies`, for feed servers."""
    return Copies(size)


CONTENDERS: dict[str, Callable[[Shape], AbstractContextManager[Stream]]] = {
    "headrace, shared memory": lambda shape: shared_memory(
        Copies(shape.sample_bytes), batch_size=shape.batch, num_workers=shape.workers, workers="local"
    ),
    "headrace, TCP on loopback": lambda shape: over_tcp(
        copies(shape.sample_bytes), shape.workers, batch_size=shape.batch
    ),
    TORCH: lambda shape: torch_loader(Copies(shape.sample_bytes), batch_size=shape.batch, num_workers=shape.workers),
    "limit: raw socket on loopback": lambda shape: raw_socket(shape.bytes),
    "limit: memcpy, one thread": lambda shape: memcpy(shape.bytes),
}


def measure(shapes: Iterable[Shape], rounds: int, seconds: float, tell: Callable[[str], None]) -> list[Window]:
    """Measures every contender on every shape.

    Args:
        shapes: what is delivered.
        rounds: windows for each contender.
        seconds: length of a window.
        tell: called with what is being done.

    Raises:
        FeedError: a feed server does not start, or a worker is lost.
    """
    windows: list[Window] = []
    for shape in shapes:
        with ExitStack() as stack:
            streams: dict[str, Stream] = {}
            for name, contender in CONTENDERS.items():
                tell(f"{shape.name}: starting {name}")
                streams[name] = stack.enter_context(contender(shape))
                next(streams[name])  # its processes are there, and what is imported late has been
            for number in range(rounds):
                for name, stream in streams.items():
                    tell(f"{shape.name}: round {number + 1} of {rounds}, {name}")
                    windows.append(_window(shape, name, number, stream, seconds))
            streams.clear()
    return windows


def _window(shape: Shape, name: str, number: int, stream: Stream, seconds: float) -> Window:
    for _ in range(DRAINED):
        next(stream)
    me = psutil.Process()
    cpu = cpu_seconds((me, *me.children(recursive=True)))
    batches, passed = take_for(stream, seconds)
    used = cpu_seconds((me, *me.children(recursive=True))) - cpu
    return Window(shape.name, name, number + 1, batches, batches * shape.bytes, passed, used)


def take_for(
    stream: Stream, seconds: float, consume: Callable[[Any], object] | None = None, *, least: int = 1, group: int = 1
) -> tuple[int, float]:
    """Takes batches for a time.

    Args:
        stream: where they come from.
        seconds: how long.
        consume: called with every batch.
        least: batches that are taken in any case.
        group: a multiple of this number of batches is taken.

    Returns:
        How many were taken, and the seconds that it took.
    """
    taken, begun = 0, time.perf_counter()
    while True:
        batch = next(stream)
        if consume is not None:
            consume(batch)
        taken += 1
        passed = time.perf_counter() - begun
        if passed >= seconds and taken >= least and taken % group == 0:
            return taken, passed


@dataclass(frozen=True)
class Summary:
    """The windows of one contender on one shape: medians, and the range over the rounds.

    Attributes:
        batches_per_second: median.
        low, high: smallest and largest batches a second.
        gigabytes_per_second: median; 1 GB is 1e9 bytes.
        cpu_seconds_per_gb: median, all processes together.
        against_torch: median of the ratios of batches a second within a round; None without torch, and for torch.
    """

    shape: str
    contender: str
    batches_per_second: float
    low: float
    high: float
    gigabytes_per_second: float
    cpu_seconds_per_gb: float
    against_torch: float | None


def summarise(windows: Sequence[Window]) -> list[Summary]:
    """Returns one summary for each shape and contender, in the order measured."""
    groups: dict[tuple[str, str], list[Window]] = {}
    for window in windows:
        groups.setdefault((window.shape, window.contender), []).append(window)
    summaries = []
    for (shape, contender), group in groups.items():
        rates = [window.batches / window.seconds for window in group]
        torch = {window.round: window.batches / window.seconds for window in groups.get((shape, TORCH), [])}
        ratios = [rate / torch[window.round] for rate, window in zip(rates, group, strict=True) if torch]
        summaries.append(
            Summary(
                shape,
                contender,
                statistics.median(rates),
                min(rates),
                max(rates),
                statistics.median(window.bytes / window.seconds / 1e9 for window in group),
                statistics.median(window.cpu / (window.bytes / 1e9) for window in group),
                statistics.median(ratios) if ratios and contender != TORCH else None,
            )
        )
    return summaries


def machine() -> dict[str, object]:
    """Returns what the figures were measured on."""
    from headrace.control_group import usable_cores
    from headrace.feed.pipelines.purity import numerics

    return {
        "cores": usable_cores(),
        "load_before": round(os.getloadavg()[0], 2),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "kernel": os.uname().release,
        **numerics(),
    }


if __name__ == "__main__":
    _send(int(sys.argv[2]), int(sys.argv[3]))
