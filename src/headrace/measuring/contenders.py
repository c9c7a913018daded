"""Ways to deliver batches to one consumer: headrace's loader, torch's, and what the machine can do at all.

Each is a context manager that gives an endless stream of batches and leaves no process behind. The limits are no
loaders: `memcpy` copies a batch with one thread, and `raw_socket` receives the bytes of a batch into buffers that are
used again and again, from a process that sends one buffer again and again.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from headrace.child_python import module_command
from headrace.feed.loader.data_loader import DataLoader
from headrace.feed.pipelines.factory import Pipeline
from headrace.measuring.loopback import START_SECONDS, feed_server

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
        command = module_command("headrace.measuring.contenders", "--send", str(port), str(size))
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


if __name__ == "__main__":
    _send(int(sys.argv[2]), int(sys.argv[3]))
