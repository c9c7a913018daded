"""Sends batches over a bare TCP socket: ``raw_sender SIZE SLOTS FILL``. Serves one connection and ends with it."""

from __future__ import annotations

import mmap
import socket
import sys

import numpy as np


def main() -> None:
    """Entry point."""
    size, count, fill = (int(argument) for argument in sys.argv[1:])
    source = np.ones(size, np.uint8)
    slots = [np.frombuffer(mmap.mmap(-1, size), np.uint8) for _ in range(count)]
    for slot in slots:
        np.copyto(slot, source)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    with connection:
        try:
            while True:
                for slot in slots:
                    if fill:
                        np.copyto(slot, source)
                    connection.sendall(slot)
        except (BrokenPipeError, ConnectionResetError):
            return


if __name__ == "__main__":
    main()
