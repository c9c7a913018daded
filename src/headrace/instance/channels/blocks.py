"""FastFile: parts of objects, fetched when they are asked for and kept for a while.

A block is `BLOCK` bytes of an object. Two readers of one block share one request. For a reader that takes block after
block, the next ones are fetched ahead. The cache is bounded in bytes; the least recently used blocks go first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.instance.storage import Object, Store

BLOCK = 4 << 20
CAPACITY = 256 << 20
AHEAD = 3  # blocks fetched ahead of a sequential reader

_Key = tuple[str, int]


class Blocks:
    """A cache of blocks. Safe for use by several threads.

    Args:
        store: where the objects are.
        pool: threads that fetch.
        capacity: bytes that are kept at most.
    """

    def __init__(self, store: Store, pool: ThreadPoolExecutor, capacity: int = CAPACITY) -> None:
        self._store = store
        self._pool = pool
        self._capacity = capacity
        self._held: OrderedDict[_Key, tuple[Future[bytes], int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def read(self, source: Object, start: int, length: int, ahead: bool) -> bytes:
        """Returns bytes of an object; fewer at its end.

        Args:
            source: the object.
            start: first byte.
            length: how many.
            ahead: whether the next bytes will be asked for soon.

        Raises:
            HeadraceError: they cannot be read, or the object is no longer what was listed.
        """
        stop = min(start + length, source.size)
        if start >= stop:
            return b""
        first, last = start // BLOCK, (stop - 1) // BLOCK
        futures = [self._block(source, number) for number in range(first, last + 1)]
        if ahead:
            for number in range(last + 1, min(last + 1 + AHEAD, -(-source.size // BLOCK))):
                self._block(source, number)
        blocks = [future.result() for future in futures]
        if len(blocks) == 1:
            return blocks[0][start - first * BLOCK : stop - first * BLOCK]
        return b"".join(blocks)[start - first * BLOCK : stop - first * BLOCK]

    def _block(self, source: Object, number: int) -> Future[bytes]:
        key = (source.uri, number)
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self._held.move_to_end(key)
                return held[0]
            size = min(BLOCK, source.size - number * BLOCK)
            future = self._pool.submit(self._store.read_range, source, number * BLOCK, size)
            self._held[key] = (future, size)
            self._bytes += size
            while self._bytes > self._capacity and len(self._held) > 1:
                _, (_, freed) = self._held.popitem(last=False)
                self._bytes -= freed
        future.add_done_callback(lambda done: self._forget_failed(key, done))
        return future

    def _forget_failed(self, key: _Key, future: Future[bytes]) -> None:
        if future.cancelled() or future.exception() is not None:
            with self._lock:
                held = self._held.get(key)
                if held is not None and held[0] is future:
                    del self._held[key]
                    self._bytes -= held[1]
