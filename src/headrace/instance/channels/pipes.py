"""Pipe: the FIFOs of a host, ``<channel>_<epoch>`` in its input/data, served by one thread a channel.

The FIFO of epoch 0 is there before the programs start. As soon as a reader has opened the FIFO of epoch e, that of
epoch e + 1 is there too: a reader that has read e to its end, or has left it, finds the next one. A FIFO is read once;
its name is removed when its data have been read.

Invariants:
* a reader that leaves early, or never comes, blocks nothing else;
* a reader sees the end of the data only when all of them came: on an error the FIFO stays open until the process
  ends, and its end fails the job.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

CAPACITY = 1 << 20  # bytes of a FIFO; the most that an ordinary user may ask for


class Pipe:
    """The FIFOs of one channel on one host.

    Args:
        folder: input/data of the host.
        channel: the channel's name.
        pieces: gives the bytes of an epoch.
        on_error: told of an error, in this pipe's thread; the FIFO being served then stays open.
    """

    def __init__(
        self,
        folder: Path,
        channel: str,
        pieces: Callable[[int], Iterator[bytes]],
        on_error: Callable[[BaseException], object],
    ) -> None:
        self._folder = folder
        self._channel = channel
        self._pieces = pieces
        self._on_error = on_error

    def path(self, epoch: int) -> Path:
        """The FIFO of an epoch."""
        return self._folder / f"{self._channel}_{epoch}"

    def start(self) -> threading.Thread:
        """Makes the first FIFO and begins to serve. Raises OSError."""
        os.mkfifo(self.path(0))
        thread = threading.Thread(target=self._run, name=f"pipe {self._channel}", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        epoch = 0
        try:
            while True:
                self._serve(epoch)
                epoch += 1
        except BaseException as error:  # noqa: BLE001  (the boundary of the thread: its starter gets the error)
            self._on_error(error)

    def _serve(self, epoch: int) -> None:
        path = self.path(epoch)
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # waits for a reader, without a limit
        os.mkfifo(self.path(epoch + 1))
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, CAPACITY)
        except OSError:  # the user has too many pipes: it is slower, and still right
            pass
        pieces = self._pieces(epoch)
        try:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
        except BrokenPipeError:  # the reader has closed its end
            pass
        # On any other error the descriptor is left open, see the module.
        pieces.close()  # type: ignore[attr-defined]  # a generator: it lets go of what it has fetched
        path.unlink()
        os.close(descriptor)
