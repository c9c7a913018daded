"""FastFile: the blocks that are kept, and the file system over them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from channel_store import FakeStore

from headrace.errors import HeadraceError, ObjectChanged
from headrace.install_hint import install_hint
from headrace.instance.channels import blocks, mounts
from headrace.instance.channels.blocks import BLOCK, Blocks
from headrace.instance.channels.object_listing import Item

BIG = "s3://b/big"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def store() -> FakeStore:
    return FakeStore({BIG: os.urandom(3 * BLOCK + 100), "s3://b/small": b"small", "s3://b/empty": b""})


def test_any_range_is_what_the_object_has_there(store, pool) -> None:
    cache, data = Blocks(store, pool), store.objects[BIG]
    source = store.look(BIG)
    for start, length in [(0, 10), (BLOCK - 5, 10), (0, 4 * BLOCK), (3 * BLOCK + 90, 50), (len(data), 5), (7, 0)]:
        assert cache.read(source, start, length, False) == data[start : start + length]
    assert cache.read(store.look("s3://b/empty"), 0, 100, True) == b""


def test_a_block_is_fetched_once_by_however_many_readers(store, pool) -> None:
    cache, gate = Blocks(store, pool), threading.Event()
    store.before = lambda _: gate.wait(10)
    with ThreadPoolExecutor(8) as readers:
        reads = [readers.submit(cache.read, store.look(BIG), number, 10, False) for number in range(8)]
        gate.set()
        assert [read.result() for read in reads] == [store.objects[BIG][number : number + 10] for number in range(8)]
    assert store.reads == [(BIG, 0, BLOCK)]


def test_a_sequential_reader_has_the_next_blocks_fetched(store, pool) -> None:
    cache = Blocks(store, pool)
    cache.read(store.look(BIG), 0, 10, True)
    pool.shutdown()
    assert sorted(start for _, start, _ in store.reads) == [0, BLOCK, 2 * BLOCK, 3 * BLOCK]
    assert store.reads[-1][2] in (BLOCK, 100)


def test_what_is_kept_is_bounded_and_the_oldest_goes_first(store, pool) -> None:
    cache = Blocks(store, pool, capacity=2 * BLOCK)
    source = store.look(BIG)
    for number in (0, 1, 0, 2):  # 1 is the one used longest ago
        cache.read(source, number * BLOCK, 1, False)
    store.reads.clear()
    for number in (0, 2, 1):
        cache.read(source, number * BLOCK, 1, False)
    assert [start for _, start, _ in store.reads] == [BLOCK]


def test_a_failed_block_is_asked_for_again(store, pool) -> None:
    cache, source = Blocks(store, pool), store.look("s3://b/small")
    content, store.objects["s3://b/small"] = store.objects["s3://b/small"], b"other"
    with pytest.raises(ObjectChanged):
        cache.read(source, 0, 5, False)
    store.objects["s3://b/small"] = content
    assert cache.read(source, 0, 5, False) == b"small"


@pytest.mark.s3
@pytest.mark.needs("libfuse")
def test_the_file_system_shows_shares_and_refuses_to_be_written(store, pool) -> None:
    import mfusepy as fuse

    from headrace.instance.channels.fastfile import FileSystem

    errors: list[HeadraceError] = []
    items = [Item("d/big", store.look(BIG)), Item("small", store.look("s3://b/small"))]
    system = FileSystem({("train", 0): items, ("train", 1): []}, Blocks(store, pool), lambda: None, errors.append)
    names = {path: [entry[0] for entry in system.readdir(path, 0)][2:] for path in ("/", "/train", "/train/0")}
    assert names == {"/": ["train"], "/train": ["0", "1"], "/train/0": ["d", "small"]}
    assert system.getattr("/train/0/d/big")["st_size"] == 3 * BLOCK + 100
    file = system.open("/train/0/d/big", os.O_RDONLY)
    assert system.read("/train/0/d/big", 100, 50, file) == store.objects[BIG][50:150]
    for path, flags, code in [
        ("/train/0/nothing", os.O_RDONLY, errno.ENOENT),
        ("/train/0/small/x", os.O_RDONLY, errno.ENOENT),
        ("/train/0", os.O_RDONLY, errno.EISDIR),
        ("/train/0/small", os.O_RDWR, errno.EROFS),
    ]:
        with pytest.raises(fuse.FuseOSError) as error:
            system.open(path, flags)
        assert error.value.errno == code
    store.objects["s3://b/small"] = b"other"
    with pytest.raises(fuse.FuseOSError):
        system.read("/train/0/small", 5, 0, system.open("/train/0/small", os.O_RDONLY))
    assert str(errors[0]).startswith("channel 'train': s3://b/small changed")


@pytest.mark.parametrize(
    ("breaks", "words", "hint"),
    [
        ({"find_spec": lambda _: None}, "mfusepy is not installed", install_hint("fastfile")),
        ({"LIBRARIES": ("libnothing.so",)}, "libfuse is not installed", "fuse3"),
        ({"DEVICE": "/nonexistent"}, "no /nonexistent", "modprobe fuse"),
        ({"TOOLS": ("no-such-tool",)}, "fusermount3 is not installed", "fuse3"),
    ],
)
def test_why_nothing_can_be_mounted_is_said_with_what_to_do(monkeypatch, breaks, words, hint) -> None:
    monkeypatch.setattr(mounts.importlib.util, "find_spec", breaks.pop("find_spec", lambda _: object()))
    for name, value in {"LIBRARIES": (None,), "DEVICE": os.devnull, "TOOLS": ("sh",), **breaks}.items():
        monkeypatch.setattr(mounts, name, value)
    why, what = mounts.why_not()
    assert words in why
    assert hint in what


def test_nothing_is_said_where_a_mount_is_possible(monkeypatch) -> None:
    monkeypatch.setattr(mounts.importlib.util, "find_spec", lambda _: object())
    for name, value in {"LIBRARIES": (None,), "DEVICE": os.devnull, "TOOLS": ("sh",)}.items():
        monkeypatch.setattr(mounts, name, value)
    assert mounts.why_not() == ("", "")


def test_blocks_are_larger_than_what_the_kernel_asks_for() -> None:
    assert blocks.BLOCK >= 1 << 20


@pytest.mark.s3
@pytest.mark.needs("fuse", "root")
def test_libfuse_says_nothing_of_its_own(tmp_path):
    """Its warnings would be the last lines of a job whose channel fails."""
    code = (
        "import os, subprocess, sys, threading\n"
        "from pathlib import Path\n"
        "from headrace.instance.channels.fastfile import FileSystem, mount\n"
        "point = sys.argv[1]\n"
        "def ready():\n"
        "    threading.Thread(target=subprocess.run, args=(['umount', '-l', point],)).start()\n"
        "mount(FileSystem({}, None, ready, lambda error: os._exit(1)), Path(point), 'headrace-test')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
