"""Making what a `SliceRequest` asks for: its batches, into the slab that it names or into a fresh one.

Rows of stacked batches are written where they belong; several batches stand in the slab one after the other. Batches
that are made whole are written one after the other too, and the slab grows when they need more than was expected. A
batch whose sample raises does not keep the others from being made. Digests are for the purity check: they are of the
bytes of every leaf, of each row, so that a difference can be named.

What goes to another host comes with the sums of its chunks, made here, while the bytes are in the cache: the feed
server passes them on and reads no byte of the payload but to send it (see `wire.frames`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from headrace.errors import ProtocolError
from headrace.feed.batch import pytree
from headrace.feed.batch.pytree import Bytes
from headrace.feed.batch.row_layout import Layout, Uneven, columns_of, decode_layout, stack_rows
from headrace.feed.batch.slab import Slab
from headrace.feed.pipelines.fetch import (
    Built,
    RowBlock,
    RowFailed,
    SampleAddresses,
    Stopwatch,
    collated,
    fetched,
    make_rows,
    make_whole,
)
from headrace.feed.wire.frames import CHECK, CHUNK, HOT, sums_of
from headrace.feed.wire.messages import SUM, BatchRows, Done, Failure, SliceRequest
from headrace.feed.wire.remote_errors import remote_error
from headrace.feed.worker.lane_reader import LaneFailed, LaneReaders
from headrace.feed.worker.send_buffers import is_empty, payload_of


class ChunkSums:
    """Writes leaves to the beginning of a slab, and sums what is complete of it, some `HOT` bytes at a time."""

    def __init__(self) -> None:
        self._sums = bytearray()  # of the chunks that are complete
        self._sum = xxhash.xxh3_64()  # of the next one, up to `_end`
        self._end = 0

    def write_leaves(self, leaves: Sequence[tuple[int, Bytes]], block: Bytes, start: int) -> None:
        """Copies leaves to their places in a block, piece by piece.

        Args:
            leaves: as of `pytree.describe`.
            block: the slab, from its first byte. It may be another one each time, with the same bytes before `start`.
            start: where the leaves' block begins in it.
        """
        memory = block.data
        for offset, raw in leaves:
            begin = start + offset
            self._back_to(begin)
            written = 0
            while written < raw.size:
                at = begin + written
                end = min(raw.size, written + HOT - at % HOT)
                block[at : begin + end] = raw[written:end]
                written = end
                if (begin + written) % HOT == 0:
                    self._add(memory, begin + written)

    def _back_to(self, begin: int) -> None:
        """Forgets the sums of what is written to from here on."""
        if begin < self._end:
            self._end = begin - begin % CHUNK
            self._sum.reset()
            del self._sums[self._end // CHUNK * CHECK.size :]

    def _add(self, memory: memoryview, end: int) -> None:
        """Sums what lies in memory up to here."""
        while self._end < end:
            begin, self._end = self._end, min(end, self._end - self._end % CHUNK + CHUNK)
            self._sum.update(memory[begin : self._end])
            if self._end % CHUNK == 0:
                self._sums += CHECK.pack(self._sum.intdigest())
                self._sum.reset()

    def complete(self, payload: Sequence[memoryview]) -> bytes:
        """Returns the sums of a payload, whose first piece begins where leaves were written, if any were."""
        if not payload:
            return b""
        first, *others = payload
        self._back_to(first.nbytes)
        self._add(first, first.nbytes)
        rest = CHECK.pack(self._sum.intdigest()) if self._end % CHUNK else b""
        return bytes(self._sums) + rest + sums_of(others)


_Place = tuple[int, int, int]  # seed, epoch and plan position of a batch
LEAST_BYTES = 64 << 10  # of a row; smaller ones are collected and stacked in one call, which costs less


def keys_of(batch: BatchRows) -> list[Any]:
    """Returns the keys of a batch's rows, one a row that is made. Raises ProtocolError if they are not sound."""
    if not batch.described:
        return batch.keys
    keys: list[Any] = pytree.rebuild(batch.keys, np.frombuffer(bytearray(batch.key_bytes), np.uint8))
    return keys


def addresses_of(request: SliceRequest, batch: BatchRows) -> SampleAddresses:
    """Returns the addresses of the rows that are asked for."""
    rows: Sequence[int] = range(batch.first, batch.last)
    if batch.left_out:
        out = set(batch.left_out)
        rows = [row for row in rows if row not in out]
    return SampleAddresses(request.epoch, request.seed, batch.position, rows, keys_of(batch))


def make_slice(
    built: Built, request: SliceRequest, slab: Slab | None, executor: int, lanes: LaneReaders | None = None
) -> tuple[Done, Slab | None]:
    """Makes a slice.

    Args:
        built: the pipeline.
        request: what is asked for.
        slab: the slab that it names, if this process has it.
        executor: number of this one.
        lanes: its readers, for a dataset without a count.

    Returns:
        The answer, and the fresh slab that it announces, None when `slab` holds the result.

    Raises:
        Uneven: the samples do not stack row by row.
        PipelineError: a result that cannot travel.
    """
    watch = Stopwatch()
    target = _Target(None if request.check == SUM else slab, scratch=request.check == SUM)
    try:
        if lanes is not None:
            answer = _make_draw(built, lanes, request, target)
        else:
            answer = (_make_whole if request.whole or built.whole else _make_rows)(built, request, target)
    except BaseException:
        target.abandon()
        raise
    empty = is_empty(request, answer)
    if empty:
        target.abandon()
    fresh, answer.executor = target.fresh, executor
    if fresh is not None:
        answer.fresh, answer.size = True, fresh.size
    elif request.check == SUM:
        answer.size = 0
    if request.sums and target.slab is not None and not empty:
        answer.sums = target.sums.complete(payload_of(request, answer, target.slab))
    cost = watch.read()
    answer.seconds, answer.cpu = cost.seconds, cost.cpu
    return answer, fresh


class _Target:
    """The memory that a slice is written to: the slab at hand, a fresh one when it is too small, or mere scratch."""

    def __init__(self, slab: Slab | None, *, scratch: bool) -> None:
        self.slab = slab
        self._scratch: Bytes | None = np.empty(0, np.uint8) if scratch else None
        self.fresh: Slab | None = None
        self.sums = ChunkSums()
        self.end = 0  # of what stands in it

    def write_leaves(self, leaves: Sequence[tuple[int, Bytes]], size: int, *, summed: bool) -> None:
        """Copies leaves to a block of `size` bytes behind what stands there."""
        block = self.block(max(1, self.end + size), keep=self.end)
        if summed:
            self.sums.write_leaves(leaves, block, self.end)
        else:
            pytree.write_leaves(leaves, block[self.end : self.end + size])

    def block(self, size: int, keep: int = 0) -> Bytes:
        """Returns memory of at least `size` bytes whose first `keep` bytes are those of the block returned before."""
        if self._scratch is not None:
            if self._scratch.size < size:
                grown = np.empty(max(size, 2 * keep), np.uint8)
                grown[:keep] = self._scratch[:keep]
                self._scratch = grown
            return self._scratch
        if self.slab is None or self.slab.size < size:
            fresh = Slab.create(max(size, 2 * keep))
            if keep and self.slab is not None:
                fresh.view()[:keep] = self.slab.view()[:keep]
            self.abandon()
            self.slab = self.fresh = fresh
        return self.slab.view()

    def abandon(self) -> None:
        """Closes the fresh slab."""
        if self.fresh is not None:
            self.fresh.close()
            self.fresh = None


class Written(NamedTuple):
    """A batch that stands in the slab: its description, from its own beginning, its bytes, and its digest if asked."""

    node: pytree.Node
    size: int
    digest: bytes = b""


def _write(batch: Any, request: SliceRequest, target: _Target) -> Written:
    """Writes a batch that was made whole behind what stands in the slab already."""
    node, leaves, size = pytree.describe(batch)
    target.write_leaves(leaves, size, summed=request.sums)
    return Written(node, size, pytree.digest_of_bytes(node, leaves) if request.check else b"")


def stacks_in_place(built: Built, request: SliceRequest) -> bool:
    """Returns whether samples that are made at once may be written as rows; what is compared is collated."""
    return built.batched and built.default_collate and not request.check


def _write_rows(built: Built, target: _Target, samples: Any) -> Written | None:
    """Stacks large samples where the batch lies, so that they are copied once. None: they are to be collated."""
    if not isinstance(samples, list) or not samples:
        return None
    rows = len(samples)
    try:
        layout = built.layouts.of(samples[0], built.collate)
        if layout.row_bytes <= LEAST_BYTES:
            return None
        columns = columns_of(samples)
        start, size = target.end, layout.size(rows)
        stack_rows(columns, layout.targets(target.block(start + size, keep=start)[start : start + size], rows))
    except Uneven:
        return None
    return Written(layout.describe(rows), size)


def _write_samples(
    built: Built, request: SliceRequest, target: _Target, samples: Any, place: _Place, keys: Sequence[Any] = ()
) -> Written:
    """Makes a batch of samples, and writes it: in place where it stacks, else collated first. Raises RowFailed."""
    written = _write_rows(built, target, samples) if stacks_in_place(built, request) else None
    return written or _write(collated(built, samples, place, keys), request, target)


def _make_whole(built: Built, request: SliceRequest, target: _Target) -> Done:
    nodes: list[list[Any] | None] = []
    failures: list[Failure] = []
    digests: list[bytes] = []
    for number, wanted in enumerate(request.batches):
        addresses = addresses_of(request, wanted)
        try:
            if built.batched and built.fetches:
                place = (addresses.seed, addresses.epoch, addresses.position)
                samples = fetched(built, addresses)
                written = _write_samples(built, request, target, samples, place, addresses.keys)
            else:
                written = _write(make_whole(built, addresses), request, target)
        except RowFailed as failed:
            failures.append(_failure(number, failed))
            nodes.append(None)
            continue
        if request.check:
            digests.append(written.digest)
        nodes.append(pytree.shifted(written.node, target.end) if target.end else written.node)
        target.end += pytree.align(written.size)
    return Done(request.number, target.end, nodes, b"", 0.0, 0.0, failures=tuple(failures), digests=digests)


def _make_draw(built: Built, lanes: LaneReaders, request: SliceRequest, target: _Target) -> Done:
    """Makes a batch of a lane's outputs; or a list of them, where the trainer makes batches of several lanes."""
    draw, [wanted] = request.draw, request.batches
    if draw is None:
        raise ProtocolError("samples by their keys are asked of a dataset without a count")
    done = Done(request.number, 0, [None], b"", 0.0, 0.0)
    try:
        outputs, drawn = lanes.draw(request.epoch, request.seed, draw, fresh=request.check == SUM)
        if outputs and draw.part:
            written = _write(outputs, request, target)
        elif outputs:
            place = (request.seed, request.epoch, wanted.position)
            written = _write_samples(built, request, target, outputs, place)
    except (LaneFailed, RowFailed) as failed:
        done.failures = (_failure(0, failed),)
        return done
    done.drawn = drawn
    if outputs:
        done.nodes, done.size = [written.node], pytree.align(written.size)
        done.digests = [written.digest] if request.check else []
    return done


def _make_rows(built: Built, request: SliceRequest, target: _Target) -> Done:
    expected = decode_layout(request.layout) if request.layout else None
    failures: list[Failure] = []
    digests: list[bytes] = []
    layout = expected
    start = end = 0
    for number, batch in enumerate(request.batches):
        addresses = addresses_of(request, batch)
        alone = expected is None or request.check == SUM or request.alone
        rows = len(addresses.keys) if alone else batch.rows
        place = RowBlock(np.empty(0, np.uint8), rows, 0 if alone else batch.first)

        def block_of(own: Layout, place: RowBlock = place, start: int = start) -> RowBlock:
            size = max(1, own.size(place.rows))
            block = target.block(start + size, keep=start)[start : start + size]
            return RowBlock(block, place.rows, place.first)

        try:
            layout = make_rows(built, addresses, layout, block_of)
        except RowFailed as failed:
            failures.append(_failure(number, failed))
            if layout is None:
                continue
        else:
            if request.check:
                digests += _row_digests(layout, target.block(0)[start:], rows, place.first, len(addresses.keys))
        end = start + layout.size(rows)
        start = end
    encoded = b"" if layout is None else request.layout if layout == expected else msgspec.msgpack.encode(layout)
    nodes: list[list[Any] | None] = []
    return Done(request.number, end, nodes, encoded, 0.0, 0.0, failures=tuple(failures), digests=digests)


def _failure(number: int, failed: RowFailed | LaneFailed) -> Failure:
    cause = failed.__cause__
    assert cause is not None
    return Failure(number, failed.row, remote_error(cause))


def _row_digests(layout: Layout, block: Bytes, rows: int, first: int, count: int) -> list[bytes]:
    """Returns the digests of rows first..first+count-1."""
    offsets, digests = layout.offsets(rows), []
    for row in range(first, first + count):
        digest = hashlib.blake2b(digest_size=pytree.DIGEST_BYTES)
        for table, offset in zip(layout.tables, offsets, strict=True):
            begin = offset + row * table.row_bytes
            digest.update(block[begin : begin + table.row_bytes].data)
        digests.append(digest.digest())
    return digests
