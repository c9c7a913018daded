"""A quick measurement of the feed on one machine, beside torch's DataLoader and beside what the machine can do at all.

Every contender delivers the same bytes to one consumer in this process, which takes batch after batch and does not read
them. They are measured in turns: a window of each, then the next round, so that a machine that is busy with other
things slows all of them. What was prefetched while the others had their turn is taken, and thrown away, before the
clock starts. CPU time is that of this process and all processes below it, workers, receivers and senders included.

The limits are no loaders: `memcpy` copies a batch with one thread, and `raw socket` receives the bytes of a batch into
one buffer that is used again and again, from a process that sends one buffer again and again.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from headrace.errors import FeedError
from headrace.feed.loader.data_loader import DataLoader
from headrace.feed.pipelines.factory import pipeline

SAMPLES = 10_000_000  # no window comes to the end of it
DRAINED = 32  # batches thrown away before a window; more than any contender prefetches
START_SECONDS = 120.0
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


Stream = Iterator[object]


@contextmanager
def _shared_memory(shape: Shape) -> Iterator[Stream]:
    with DataLoader(Copies(shape.sample_bytes), shape.batch, num_workers=shape.workers, workers="local") as loader:
        yield iter(loader)


@contextmanager
def _over_tcp(shape: Shape) -> Iterator[Stream]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        secret = Path(directory) / "secret"
        secret.write_text(os.urandom(32).hex())
        secret.chmod(0o600)
        address = stack.enter_context(_server(secret, shape.workers))
        named = copies(shape.sample_bytes)
        yield iter(
            stack.enter_context(DataLoader(named, shape.batch, workers=f"tcp://{address}", secret_file=str(secret)))
        )


@contextmanager
def _server(secret: Path, executors: int) -> Iterator[str]:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    ours, theirs = os.pipe()
    command = [sys.executable, "-m", "headrace.feed.serve", "--bind", address, "--executors", str(executors)]
    command += ["--secret-file", str(secret), "--status-fd", str(theirs)]
    try:
        process = subprocess.Popen(command, pass_fds=[theirs], stdin=subprocess.DEVNULL)
    finally:
        os.close(theirs)
    try:
        if not select.select([ours], [], [], START_SECONDS)[0] or not os.read(ours, 4096):
            raise FeedError(f"the feed server of the measurement did not start within {START_SECONDS:.0f} s")
        yield address
    finally:
        os.close(ours)
        process.terminate()
        process.wait()


@contextmanager
def _torch(shape: Shape) -> Iterator[Stream]:
    from torch.utils.data import DataLoader as TorchLoader

    dataset: Any = Copies(shape.sample_bytes)
    stream = iter(TorchLoader(dataset, shape.batch, num_workers=shape.workers))
    try:
        yield stream
    finally:
        del stream  # its workers end with it


@contextmanager
def _raw_socket(shape: Shape) -> Iterator[Stream]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "headrace.feed.bench", "--send", str(port), str(shape.bytes)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            listener.settimeout(START_SECONDS)
            connection, _ = listener.accept()
            with closing(connection):
                yield _receive(connection, shape.bytes)
        finally:
            process.kill()
            process.wait()


def _receive(connection: socket.socket, size: int) -> Stream:
    buffer = memoryview(bytearray(size))
    while True:
        filled = 0
        while filled < size:
            filled += connection.recv_into(buffer[filled:])
        yield buffer


@contextmanager
def _memcpy(shape: Shape) -> Iterator[Stream]:
    source, target = np.ones(shape.bytes, np.uint8), np.empty(shape.bytes, np.uint8)

    def copy() -> Stream:
        while True:
            np.copyto(target, source)
            yield target

    yield copy()


CONTENDERS: dict[str, Callable[[Shape], contextlib.AbstractContextManager[Stream]]] = {
    "headrace, shared memory": _shared_memory,
    "headrace, TCP on loopback": _over_tcp,
    TORCH: _torch,
    "limit: raw socket on loopback": _raw_socket,
    "limit: memcpy, one thread": _memcpy,
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
    batches, cpu, begun = 0, _cpu(), time.perf_counter()
    end = begun + seconds
    while (now := time.perf_counter()) < end or not batches:
        next(stream)
        batches += 1
    return Window(shape.name, name, number + 1, batches, batches * shape.bytes, now - begun, _cpu() - cpu)


def _cpu() -> float:
    """Returns the CPU seconds of this process and of all that live below it."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


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
    found = []
    for (shape, contender), group in groups.items():
        rates = [window.batches / window.seconds for window in group]
        torch = {window.round: window.batches / window.seconds for window in groups.get((shape, TORCH), [])}
        ratios = [rate / torch[window.round] for rate, window in zip(rates, group, strict=True) if torch]
        found.append(
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
    return found


def machine() -> dict[str, object]:
    """Returns what the figures were measured on."""
    from headrace.feed.pipelines.fingerprint import numerics
    from headrace.feed.worker.usable_cores import usable_cores

    return {
        "cores": usable_cores(),
        "load_before": round(os.getloadavg()[0], 2),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "kernel": os.uname().release,
        **numerics(),
    }


def _send(port: int, size: int) -> None:
    """The sender of `raw socket`: one buffer, again and again, until the receiver closes."""
    buffer = bytes(size)
    with socket.create_connection(("127.0.0.1", port)) as connection, contextlib.suppress(ConnectionError):
        while True:
            connection.sendall(buffer)


if __name__ == "__main__":
    _send(int(sys.argv[2]), int(sys.argv[3]))
