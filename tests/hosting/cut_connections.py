"""Passes on connections and cuts them again and again, in the middle of what they carry."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator

BUDGETS = (3_000, 40_000, 700, 150_000, 15_000)  # bytes towards the target before a cut, in turn


class Cuts:
    """Listens on a free port of the target's own address.

    Args:
        target: (address, port).

    Attributes:
        port: where it listens.
        cuts: how many connections it has cut.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.cuts = 0
        self._target = target
        self._listener = socket.create_server((target[0], 0))
        self.port: int = self._listener.getsockname()[1]
        self._budgets = itertools.cycle(BUDGETS)
        self._threads: list[threading.Thread] = []
        self._sockets: set[socket.socket] = set()
        self._start(self._accept)

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="cuts")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            self._sockets |= {client, server}
            self._start(self._pump, client, server, next(self._budgets))
            self._start(self._pump, server, client, 0)

    def _pump(self, source: socket.socket, sink: socket.socket, budget: int) -> None:
        left = budget
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if budget and len(data) >= left:
                    sink.sendall(data[:left])  # a part of a message
                    self.cuts += 1
                    break
                left -= len(data)
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cuts all, and ends."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()


@contextlib.contextmanager
def cutting(target: tuple[str, int]) -> Iterator[Cuts]:
    """Cuts connections to an address while this is open."""
    cuts = Cuts(target)
    try:
        yield cuts
    finally:
        cuts.close()
