"""Pipe: the bytes of every epoch, and readers of every kind."""

from __future__ import annotations

import gzip
import itertools
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from channel_store import FakeStore

from headrace.errors import HeadraceError, ObjectChanged, StorageError
from headrace.instance.channels import object_listing, pipes
from headrace.instance.channels.pipes import Epochs, Pipe
from headrace.instance.channels.stage_orders import ChannelOrder


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def store() -> FakeStore:
    return FakeStore({f"s3://b/train/{name}": name.encode() * 5 for name in "abcde"})


def channel(**changes: object) -> ChannelOrder:
    fields: dict[str, object] = {"name": "train", "uri": "s3://b/train/", "hosts": ("algo-1",), "input_mode": "Pipe"}
    return ChannelOrder(**fields | changes)


def epochs(order: ChannelOrder, store: FakeStore, pool: ThreadPoolExecutor, host: str = "algo-1") -> Epochs:
    augmented = order.data_type == "AugmentedManifestFile"
    contents = (object_listing.list_lines if augmented else object_listing.list_items)(order, store)
    return Epochs(order, contents, order.place(host), store, pool)


def content(order: ChannelOrder, store: FakeStore, pool: ThreadPoolExecutor, epoch: int = 0, host="algo-1") -> bytes:
    return b"".join(epochs(order, store, pool, host).pieces(epoch))


def records(data: bytes) -> list[bytes]:
    """Reads RecordIO as sagemaker's `read_recordio` does: magic, length, data, padding."""
    found, at = [], 0
    while at < len(data):
        magic, length = struct.unpack_from("<II", data, at)
        assert magic == 0xCED7230A
        found.append(data[at + 8 : at + 8 + length])
        at += 8 + length + -length % 4
    return found


def test_objects_follow_each_other(store, pool) -> None:
    assert content(channel(), store, pool) == b"aaaaabbbbbcccccdddddeeeee"


def test_every_object_is_a_record(store, pool) -> None:
    store.objects["s3://b/train/empty"] = b""
    assert records(content(channel(record_wrapping="RecordIO"), store, pool)) == [
        *(letter * 5 for letter in (b"a", b"b", b"c", b"d", b"e")),
        b"",
    ]


@pytest.mark.parametrize("size", [0, 1, pipes.PART - 1, pipes.PART, pipes.PART + 1, 9 * pipes.PART + 5])
def test_large_objects_come_in_parts_and_in_order(store, pool, size) -> None:
    data = os.urandom(size)
    store.objects = {"s3://b/train/x": data, "s3://b/train/y": b"end"}
    assert content(channel(), store, pool) == data + b"end"
    assert max((length for _, _, length in store.reads), default=0) <= pipes.PART
    assert records(content(channel(record_wrapping="RecordIO"), store, pool)) == [data, b"end"]


@pytest.mark.parametrize("wrapping", ["None", "RecordIO"])
def test_gzip_is_decompressed_object_by_object_several_members_too(store, pool, wrapping, monkeypatch) -> None:
    monkeypatch.setattr(pipes, "PART", 1000)
    monkeypatch.setattr(pipes, "SPOOLED", 5000)
    first, second = os.urandom(20_000) + bytes(300_000), b"two"
    store.objects = {
        "s3://b/train/1.gz": gzip.compress(first[:10], mtime=0) + gzip.compress(first[10:], mtime=0),
        "s3://b/train/2.gz": gzip.compress(second, mtime=0),
        "s3://b/train/3.gz": gzip.compress(b"", mtime=0),
    }
    order = channel(compression="Gzip", record_wrapping=wrapping)
    got = content(order, store, pool)
    assert (records(got) if wrapping == "RecordIO" else [got]) == (
        [first, second, b""] if wrapping == "RecordIO" else [first + second]
    )


@pytest.mark.parametrize(
    "data", [b"plain text", gzip.compress(bytes(5000), mtime=0)[:-9], gzip.compress(b"x", mtime=0) + b"rest", b"\x1f"]
)
def test_what_is_not_gzip_is_named(store, pool, data) -> None:
    store.objects = {"s3://b/train/1.gz": data}
    with pytest.raises(StorageError, match=r"channel 'train': s3://b/train/1.gz is not gzip"):
        content(channel(compression="Gzip"), store, pool)


def test_a_record_that_is_too_large_is_named(store, pool, monkeypatch) -> None:
    monkeypatch.setattr("headrace.instance.channels.pipes.MAX_RECORD", 4)
    with pytest.raises(StorageError, match="s3://b/train/a is larger than a RecordIO record"):
        content(channel(record_wrapping="RecordIO"), store, pool)
    store.objects = {"s3://b/train/a": gzip.compress(b"12345", mtime=0)}
    with pytest.raises(StorageError, match="s3://b/train/a is larger than a RecordIO record"):
        content(channel(record_wrapping="RecordIO", compression="Gzip"), store, pool)


def test_shards_of_a_shuffled_channel_are_dealt_anew_and_make_up_the_whole(store, pool) -> None:
    order = channel(distribution="ShardedByS3Key", hosts=("algo-1", "algo-2"), seed=3, record_wrapping="RecordIO")
    first = []
    for epoch in range(4):
        shares = [records(content(order, store, pool, epoch, host)) for host in order.hosts]
        assert sorted(itertools.chain(*shares)) == [letter * 5 for letter in (b"a", b"b", b"c", b"d", b"e")]
        assert [len(each) for each in shares] == [3, 2]
        first.append(tuple(shares[0]))
    assert len(set(first)) > 1


def test_an_augmented_manifest_delivers_contents_and_values_line_by_line(store, pool) -> None:
    lines = b"".join(b'{"source-ref": "s3://b/train/%c", "label": %d}\n' % (letter, letter) for letter in b"abc")
    store.objects["s3://b/m"] = lines
    order = channel(
        uri="s3://b/m",
        data_type="AugmentedManifestFile",
        attributes=("source-ref", "label"),
        record_wrapping="RecordIO",
    )
    assert records(content(order, store, pool)) == [b"aaaaa", b"97", b"bbbbb", b"98", b"ccccc", b"99"]
    shuffled = channel(uri=order.uri, data_type=order.data_type, attributes=("label",), seed=1)
    assert {content(shuffled, store, pool, epoch) for epoch in range(12)} > {b"979899", b"999897"}


def test_an_object_that_changed_since_it_was_listed_is_named(store, pool) -> None:
    served = epochs(channel(), store, pool)
    store.objects["s3://b/train/c"] = b"other"
    with pytest.raises(ObjectChanged, match=r"channel 'train': s3://b/train/c changed"):
        list(served.pieces(0))


# The FIFOs


class Served:
    def __init__(self, folder: Path, produce: Callable[[int], Iterator[bytes]]) -> None:
        self.folder = folder
        self.errors: list[BaseException] = []
        self.failed = threading.Event()
        self.pipe = Pipe(folder, "train", produce, self._failed)
        self.thread = self.pipe.start()

    def _failed(self, error: BaseException) -> None:
        self.errors.append(error)
        self.failed.set()

    def stop(self) -> None:
        """Ends the thread: a reader comes, and the next FIFO cannot be made because the folder has gone."""
        gone = self.folder.rename(f"{self.folder}-gone")
        for path in gone.glob("train_*"):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        self.thread.join(5)


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[..., Served]]:
    served = []

    def start(produce: Callable[[int], Iterator[bytes]]) -> Served:
        served.append(Served(tmp_path, produce))
        return served[-1]

    yield start
    for each in served:
        each.stop()
        assert not each.thread.is_alive()


def numbered(epoch: int) -> Iterator[bytes]:
    yield f"epoch {epoch} ".encode()
    yield b"x" * 3_000_000
    yield b"end"


def test_every_epoch_has_a_fifo_that_is_there_when_the_one_before_is_read(serve, tmp_path) -> None:
    serve(numbered)
    assert [path.name for path in tmp_path.iterdir()] == ["train_0"]
    for epoch in range(3):
        data = (tmp_path / f"train_{epoch}").read_bytes()
        assert data.startswith(b"epoch %d xxx" % epoch)
        assert data.endswith(b"xend")
        assert (tmp_path / f"train_{epoch + 1}").is_fifo()


def test_a_reader_that_leaves_early_finds_the_next_epoch(serve, tmp_path) -> None:
    served = serve(numbered)
    for epoch in range(3):
        with (tmp_path / f"train_{epoch}").open("rb") as file:
            assert file.read(9) == b"epoch %d x" % epoch
    assert served.errors == []


def test_an_epoch_without_data_ends_at_once(serve, tmp_path) -> None:
    serve(lambda epoch: (piece for piece in ()))
    assert (tmp_path / "train_0").read_bytes() == b""
    assert (tmp_path / "train_1").read_bytes() == b""


def test_a_fifo_that_was_read_is_gone(serve, tmp_path) -> None:
    serve(numbered)
    (tmp_path / "train_0").read_bytes()
    deadline = time.monotonic() + 5
    while (tmp_path / "train_0").exists():
        assert time.monotonic() < deadline
    assert (tmp_path / "train_1").exists()


def test_after_an_error_the_reader_sees_no_end(serve, tmp_path) -> None:
    def broken(epoch: int) -> Iterator[bytes]:
        yield b"begin"
        raise HeadraceError("gone")

    served = serve(broken)
    descriptor = os.open(tmp_path / "train_0", os.O_RDONLY)
    try:
        assert os.read(descriptor, 100) == b"begin"
        assert served.failed.wait(5)
        os.set_blocking(descriptor, False)
        with pytest.raises(BlockingIOError):
            os.read(descriptor, 100)
    finally:
        os.close(descriptor)
    assert str(served.errors[0]) == "gone"
