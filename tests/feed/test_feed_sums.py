"""Sums of payloads: made by who writes the bytes, passed on by who sends them, checked by who receives them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import array_data
import feed_data
import numpy as np
import pytest
from feed_servers import Server
from torch.utils.data import default_collate

from headrace.errors import ProtocolError
from headrace.feed import DataLoader, stack_arrays
from headrace.feed.batch import pytree
from headrace.feed.batch.slab import Slab
from headrace.feed.identifiers import PipelineNumber, RequestNumber, SlabNumber
from headrace.feed.pipelines.fetch import Built
from headrace.feed.wire import frames, messages
from headrace.feed.wire.framed_connection import FramedConnection
from headrace.feed.wire.frames import CHUNK, HOT, read_sums, sums_of
from headrace.feed.wire.messages import BatchRows, Done, SliceRequest
from headrace.feed.worker.send_buffers import payload_of
from headrace.feed.worker.slices import ChunkSums, make_slice


@pytest.mark.parametrize(
    "sizes",
    [
        [1],
        [CHUNK],
        [CHUNK - 64, 1, 3 * CHUNK + 5],
        [100, CHUNK - 128, 7, 2 * CHUNK],
        [HOT - 3, HOT, 1, 7 * HOT - 64, 9],
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_sums_that_are_made_while_leaves_are_written_are_those_of_the_payload(sizes: list[int], again: bool) -> None:
    draw = np.random.default_rng(len(sizes))
    sums, block, end = ChunkSums(), np.zeros(sum(sizes) + CHUNK, np.uint8), 0
    for size in sizes:  # one batch after the other, each where the one before ends
        batch = [draw.integers(0, 256, part, np.uint8) for part in (size // 3, size - size // 3) if part]
        _, leaves, length = pytree.describe(batch)
        if again:  # what was written there before
            other = [np.ones(part.size + CHUNK, np.uint8) for part in batch]
            sums.write_leaves(pytree.describe(other)[1], np.concatenate([block, np.zeros(4 * CHUNK, np.uint8)]), end)
        sums.write_leaves(leaves, block, end)
        for offset, raw in leaves:
            assert np.array_equal(block[end + offset : end + offset + raw.size], raw)
        end += pytree.align(length)
    payload = [block[:end].data, block[5:900].data]
    assert sums.complete(payload) == sums_of(payload)
    assert read_sums(sums.complete(payload), payload) == [
        frames.checksum(chunk) for piece in payload for chunk in frames.cut(piece)
    ]


def test_sums_that_are_not_one_for_every_chunk_are_refused() -> None:
    payload = [memoryview(bytes(CHUNK + 1)), memoryview(b"x")]
    good = sums_of(payload)
    assert len(read_sums(good, payload)) == 3
    for bad in (b"", good[:-8], good[:-1], good + bytes(8)):
        with pytest.raises(ProtocolError, match=r"bytes of sums came with a payload of 3 chunks"):
            read_sums(bad, payload)


class Rows:
    """Ten rows of 700,000 bytes; the fourth raises."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        if index == 4:
            raise ValueError("the fourth")
        return np.full(700_000, index, np.uint8), index


def a_slice(keys: list[int], slab: Slab, *, whole: bool, layout: bytes = b"") -> tuple[SliceRequest, Done]:
    batch = BatchRows(0, 0, len(keys), 0, len(keys), keys)
    request = SliceRequest(RequestNumber(1), PipelineNumber(1), 0, 0, (batch,), whole, SlabNumber(1), layout, sums=True)
    done, fresh = make_slice(Built(Rows(), default_collate, default_collate=True), request, slab, 0)
    assert fresh is None
    return request, done


@pytest.mark.parametrize("whole", [True, False])
def test_a_byte_that_changes_in_the_servers_memory_is_found_by_the_receiver(whole: bool) -> None:
    slab = Slab.create(8 << 20)
    request, done = a_slice([1, 2, 3, 5, 6, 7], slab, whole=whole)
    payload = payload_of(request, done, slab)
    sums = read_sums(done.sums, payload)
    assert len(sums) >= 3
    assert a_slice([4], slab, whole=whole)[1].sums == b"", "nothing was made"
    request, done = a_slice([1, 2, 3, 5, 6, 7], slab, whole=whole, layout=done.layout)
    assert read_sums(done.sums, payload) == sums
    for damaged in (False, True):
        if damaged:
            payload[0][CHUNK + 77] ^= 1
        ours, theirs = socket.socketpair()
        got = [np.zeros(piece.nbytes, np.uint8) for piece in payload]
        sender = FramedConnection(ours)
        receiver = FramedConnection(theirs, sink=lambda *_, got=got: [each.data for each in got])
        sender.send(messages.Pong(), payload=frames.Payload(payload, sums))
        if damaged:
            with pytest.raises(ProtocolError, match="a damaged chunk of"):
                pass_on(sender, receiver)
        else:
            pass_on(sender, receiver)
            assert b"".join(payload) == b"".join(each.tobytes() for each in got)
        sender.close()
        receiver.close()
    slab.close()


def pass_on(sender: FramedConnection, receiver: FramedConnection) -> None:
    while not receiver.receive():
        sender.flush()


def test_a_server_makes_no_sum_itself(
    own_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "sys.modules['torch'] = None\n"  # which it need not import
        "if 'headrace.feed.serve' in sys.orig_argv:\n"
        "    from headrace.feed.wire import frames\n"
        "    def checksum(data):\n"
        "        raise SystemExit('the server made a sum')\n"
        "    frames.checksum = checksum\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = own_server()
    monkeypatch.delenv("PYTHONPATH")
    options: dict[str, Any] = {"batch_size": 32, "seed": 3, "collate_fn": stack_arrays}
    rows = array_data.pictures(64, shape=[256, 128])
    with DataLoader(rows, workers=server.tcp, secret_file=str(server.secret), **options) as loader:
        batches = [feed_data.flat(batch) for batch in loader]
        assert loader.stats()["workers_lost"] == 0
    with DataLoader(rows, **options) as alone:
        assert batches == [feed_data.flat(batch) for batch in alone]
    assert len(batches[0]) > CHUNK
