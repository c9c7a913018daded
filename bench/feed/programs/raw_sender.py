"""Sends batches over a bare TCP socket: ``raw_sender SIZE SLOTS fresh|in place|send only``. Serves one connection."""

from __future__ import annotations

import itertools
import mmap
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.child_python import die_with_parent


def fresh(size: int) -> Iterator[Any]:
    """Gives the batches of the row's dataset, one by one."""
    import torch
    from bench.feed.data import Shaped

    torch.set_num_threads(1)  # as in the workers of every loader
    dataset = Shaped("one tensor", size)
    return (dataset[index].numpy() for index in itertools.count())


def reused(size: int, count: int, *, fill: bool) -> Iterator[Any]:
    """Gives some buffers in turn, filled anew or not."""
    source = np.ones(size, np.uint8)
    slots = [np.frombuffer(mmap.mmap(-1, size), np.uint8) for _ in range(count)]
    for slot in slots:
        np.copyto(slot, source)
    for slot in itertools.cycle(slots):
        if fill:
            np.copyto(slot, source)
        yield slot


def main() -> None:
    """Entry point."""
    die_with_parent(os.getppid())
    size, count, source = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    batches = fresh(size) if source == "fresh" else reused(size, count, fill=source == "in place")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    with connection:
        try:
            for batch in batches:
                connection.sendall(batch)
        except (BrokenPipeError, ConnectionResetError):
            return


if __name__ == "__main__":
    main()
