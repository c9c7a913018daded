"""Staging: where a feed server keeps results on their way to clients behind TCP.

Executors write into staging slabs, and results are sent from there as they lie. The slabs are recycled and bounded in
bytes. Of n > 1 jobs each may hold memory / (n + 1), and is always given that much, also when a job that was alone, and
does not read any more, holds the rest. A job that holds nothing is always given one slab.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import ProtocolError
from headrace.feed.batch.row_layout import decode_layout
from headrace.feed.batch.slab import Slab, SlabPool
from headrace.feed.identifiers import NO_SLAB, PipelineNumber, SlabNumber
from headrace.feed.wire import messages
from headrace.feed.wire.framed_connection import MAX_PAYLOAD
from headrace.feed.wire.frames import Payload, read_sums

MAX_BATCHES = 4096


def check_request(request: messages.SliceRequest) -> None:
    """Raises ProtocolError if what a client asks for is not sound."""
    if not 0 < len(request.batches) <= MAX_BATCHES:
        raise ProtocolError(f"a request for {len(request.batches)} batches")
    for batch in request.batches:
        part = batch.last - batch.first < batch.rows
        if not (0 <= batch.first <= batch.last <= batch.rows) or (part and len(request.batches) > 1):
            raise ProtocolError(f"a request for rows {batch.first}..{batch.last} of {batch.rows}")
    layout = decode_layout(request.layout) if request.layout else None
    if layout is not None and sum(layout.size(batch.rows) for batch in request.batches) > MAX_PAYLOAD:
        raise ProtocolError(f"a request for batches of more than {MAX_PAYLOAD} bytes")


def made_bytes(request: messages.SliceRequest, done: messages.Done) -> int:
    """Returns the bytes of a slice; where its rows are not stacked, at most as many as its slab has."""
    return own_block(request, done.layout)[0] if done.layout else done.size


def own_block(request: messages.SliceRequest, encoded: bytes) -> tuple[int, list[tuple[int, int]]]:
    """Returns the bytes of a request's rows as a block of their own, and what is sent of it: (offset, length)."""
    layout, rows = decode_layout(encoded), [batch.last - batch.first for batch in request.batches]
    size = sum(map(layout.size, rows))
    return size, [(0, size)] if len(rows) > 1 else layout.regions(rows[0], 0, rows[0])


def is_empty(request: messages.SliceRequest, done: messages.Done) -> bool:
    """Whether nothing was made: every batch failed, or a lane had nothing to give."""
    return len(done.failures) == len(request.batches) or (done.drawn is not None and not done.drawn.rows)


def payload_of(request: messages.SliceRequest, done: messages.Done, slab: Slab) -> list[memoryview]:
    """Returns what is sent of a slice to a client behind TCP."""
    regions = own_block(request, done.layout)[1] if done.layout else [(0, min(done.size, slab.size))]
    return [slab.memory(offset, length) for offset, length in regions]


class Staging:
    """See the module.

    Args:
        memory: limit, bytes.
        dropped: called with the number of a slab that is gone.

    Attributes:
        numbers: of its slabs, and of all others that executors are offered.
    """

    def __init__(self, memory: int, dropped: Callable[[SlabNumber], None]) -> None:
        self._pool = SlabPool(memory)
        self.numbers = self._pool.numbers
        self._dropped = dropped
        self._owners: dict[SlabNumber, str] = {}  # jobs
        self._memory = memory
        self._batch_bytes: dict[PipelineNumber, int] = {}  # of a pipeline: the largest batch that was made whole

    def __getitem__(self, number: SlabNumber) -> Slab:
        return self._pool[number]

    @property
    def bytes_in_use(self) -> int:
        """Bytes of the slabs that hold results."""
        return self._pool.total_bytes - self._pool.free_bytes

    def held(self, job: str) -> int:
        """Bytes of the slabs that hold results for a job."""
        return sum(self._pool[number].size for number, owner in self._owners.items() if owner == job)

    def reserve(self, request: messages.SliceRequest, job: str = "", jobs: int = 1) -> SlabNumber | None:
        """Sets a slab aside for a result.

        Args:
            request: what is made; of this server's pipeline.
            job: for whom.
            jobs: that there are.

        Returns:
            Its number; 0 when its size is not known yet, or nothing will come; None when there is no memory now.
        """
        size = self._batch_bytes.get(request.pipeline, 0) * len(request.batches)
        if request.layout:
            size = max(1, own_block(request, request.layout)[0])
        if not size or request.check == messages.SUM:
            return NO_SLAB
        held = self.held(job)
        fits = held + size <= self._memory // (jobs + 1)
        if jobs > 1 and held and not fits:
            return None
        number = self._pool.acquire(size, force=not held or (jobs > 1 and fits))
        if number is not None:
            self._owners[number] = job
        return number

    def adopt(self, slab: Slab, job: str = "") -> SlabNumber:
        """Takes over a slab that an executor made for a job. Returns its number."""
        number = self._pool.adopt(slab)
        self._owners[number] = job
        return number

    def payload(self, number: SlabNumber, request: messages.SliceRequest, done: messages.Done) -> Payload:
        """Returns what is sent of a result, with the sums of its chunks if they were asked for.

        Learns how large batches that are made whole are. Raises ProtocolError if the executor made other sums.
        """
        slab = self._pool[number]
        if not done.layout:
            each = -(-min(done.size, slab.size) // len(request.batches))
            self._batch_bytes[request.pipeline] = max(self._batch_bytes.get(request.pipeline, 0), each)
        payload = payload_of(request, done, slab)
        return Payload(payload, read_sums(done.sums, payload) if request.sums else ())

    def forget(self, pipeline: PipelineNumber) -> None:
        """Nothing is made of a pipeline any more."""
        self._batch_bytes.pop(pipeline, None)

    def release(self, number: SlabNumber) -> None:
        """Gives a slab back."""
        self._owners.pop(number, None)
        self._pool.discard(number)
        for dropped in self._pool.take_dropped():
            self._dropped(dropped)
