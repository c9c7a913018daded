"""Hosts make an index together, by a folder that they share or by their feed servers; one that dies changes nothing."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import counted_data
import pytest
from feed_servers import Server, free_port, wait_until
from source_data import fill_tars

from headrace import feed
from headrace.errors import ShardError
from headrace.feed.sources import index_mail, index_parts, shard_index
from headrace.feed.sources.index_mail import IndexMail
from headrace.feed.sources.index_parts import IndexParts
from headrace.feed.sources.index_program import Outcome, index_one
from headrace.feed.sources.index_shards import FOLDER
from headrace.feed.sources.shard_format import Counted, Stamp, stamp_of
from headrace.feed.sources.shard_index import IndexedShard, ShardIndex
from needs import require
from objectstore import ObjectStore

pytestmark = pytest.mark.usefixtures("without_torch")
SHARDS = 60
SECONDS = 0.05  # of a shard
KEY = "ab-tar-cd.index"
PROGRAM = Path(__file__).with_name("index_program.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    there = tmp_path / "shards"
    there.mkdir()
    for shard in range(SHARDS):
        with tarfile.open(there / f"{shard:02}.tar", "w") as tar:
            for row in range(2):
                member = tarfile.TarInfo(f"{shard:02}{row}.cls")
                member.size = 2
                tar.addfile(member, io.BytesIO(b"%02d" % row))
    return there


def host(name: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), name, str(folder), str(folder.parent / name)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def counted(name: str, folder: Path) -> list[str]:
    log = folder.parent / name
    return log.read_text().split() if log.exists() else []


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / FOLDER).iterdir())


def test_two_hosts_share_the_work_and_leave_one_index(folder: Path) -> None:
    hosts = [host(name, folder) for name in "ab"]
    told = [each.communicate(timeout=100)[0] for each in hosts]
    assert told == [f"{2 * SHARDS}\n"] * 2
    of = [counted(name, folder) for name in "ab"]
    assert {*of[0], *of[1]} == {path.name for path in folder.glob("*.tar")}
    assert all(len(each) < SHARDS for each in of), "neither counted all"
    assert len(of[0]) + len(of[1]) < 2 * SHARDS - 10, of
    [index] = files(folder)
    found = ShardIndex.open(folder / FOLDER / index)
    assert found is not None
    assert len(found.entries) == SHARDS
    assert [int(row["cls"]) for row in feed.tar(folder)] == [0, 1] * SHARDS


def test_what_a_killed_host_has_counted_is_not_counted_again(folder: Path) -> None:
    first = host("a", folder)
    wait_until(lambda: list((folder / FOLDER).glob("*.part")), "a part is written")
    first.kill()
    first.communicate()
    done: set[str] = set()
    for path in (folder / FOLDER).glob("*.part"):
        part = ShardIndex.open(path)
        assert part is not None
        done |= part.entries.keys()
    assert 0 < len(done) < SHARDS
    changed = folder / sorted(done)[0]
    shutil.copyfile(folder / f"{SHARDS - 1}.tar", changed)  # another time of change: counted anew
    second = host("b", folder)
    assert second.communicate(timeout=100)[0] == f"{2 * SHARDS}\n"
    again = counted("b", folder)
    assert set(again) & done == {changed.name}
    assert len(again) == SHARDS - len(done) + 1
    assert not [name for name in files(folder) if name.endswith(".part")]


def test_parts_are_taken_if_the_shard_is_the_same_and_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_parts, "_SECONDS", 0.0)
    index = folder / FOLDER / "tar-x.index"
    index.parent.mkdir()
    names = [f"{number:02}.tar" for number in range(6)]
    stamps = {name: stamp_of(folder / name) for name in names}
    lock = index.with_name("lock")
    one, two = IndexParts(index, folder, KEY, stamps, names), IndexParts(index, folder, KEY, stamps, names)
    outcomes = [index_one("tar", folder, name, lock) for name in names[:3]]
    one.put([*outcomes, Outcome("05.tar", None, "broken")])
    other = stamps | {"00.tar": stamps["00.tar"]._replace(modified=1)}
    three = IndexParts(index, folder, KEY, other, names)
    assert sorted(two.take(6)) == names[3:], "a broken one is for everybody to find"
    assert {name: each.rows for name, each in two.taken.items()} == dict.fromkeys(names[:3], 2)
    assert sorted(three.take(6)) == ["00.tar", *names[3:]]
    assert sorted(one.take(6)) == names, "its own parts say nothing new"
    [part] = index.parent.glob("*.part")
    part.write_bytes(part.read_bytes()[:-1])
    four = IndexParts(index, folder, KEY, stamps, names)
    assert sorted(four.take(6)) == names, "a part that was cut off is none"
    four.clear()
    assert not list(index.parent.glob("*.part"))


# Hosts that have no folder in common: their feed servers tell each other


@pytest.fixture
def apart(tmp_path: Path, own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Server]:
    """Starts a feed server with a cache of its own."""

    def start(name: str, **options: int) -> Server:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache of {name}"))
        monkeypatch.setenv("COUNT_LOG", str(tmp_path / name))
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        return own_server(name, executors=1, **options)

    return start


@pytest.fixture
def unshared(folder: Path) -> Path:
    (folder / FOLDER).write_text("no folder: the index is kept in the cache of each host")
    return folder


def values(folder: Path | str, workers: str, secret: Path, seconds: float = SECONDS) -> list[int]:
    pipeline = counted_data.counted(str(folder), seconds)
    with feed.DataLoader(pipeline, 10, workers=workers, secret_file=secret, collate_fn=feed.stack_arrays) as loader:
        return [int(row) for batch in loader for row in batch]


def indexes(folder: Path, name: str) -> list[Path]:
    return list((folder.parent / f"cache of {name}").rglob("*.index"))


def test_hosts_without_a_common_folder_share_the_work(unshared: Path, apart: Callable[..., Server]) -> None:
    one, two = [apart(name) for name in "ab"]
    assert values(unshared, f"{one.tcp},{two.tcp}", one.secret) == [0, 1] * SHARDS
    of = [counted(name, unshared) for name in "ab"]
    assert {*of[0], *of[1]} == {path.name for path in unshared.glob("*.tar")}
    assert all(len(each) < SHARDS for each in of), "neither counted all"
    assert len(of[0]) + len(of[1]) < 2 * SHARDS - 20, of
    assert [len(indexes(unshared, name)) for name in "ab"] == [1, 1]
    wait_until(lambda: not list(unshared.parent.glob("headrace-index-*")), "the folders of parts are removed")


def test_hosts_share_the_work_on_objects(
    s3: ObjectStore, tmp_path: Path, apart: Callable[..., Server], folder: Path
) -> None:
    for path in folder.glob("*.tar"):
        s3.put(f"data/{path.name}", path.read_bytes())
    one, two = [apart(name) for name in "ab"]
    assert values(s3.uri("data"), f"{one.tcp},{two.tcp}", one.secret) == [0, 1] * SHARDS
    of = [counted(name, folder) for name in "ab"]
    assert {*of[0], *of[1]} == {path.name for path in folder.glob("*.tar")}
    assert len(of[0]) + len(of[1]) < 2 * SHARDS - 20, of


def test_a_host_that_comes_later_is_told_what_was_counted(
    unshared: Path, apart: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, port = tmp_path / "gate", free_port()
    monkeypatch.setenv("COUNT_GATE", str(gate))
    first = apart("a")
    monkeypatch.delenv("COUNT_GATE")
    begun: list[int] = []

    def come() -> None:
        try:
            wait_until(lambda: len(counted("a", unshared)) > 15, "the first host has counted some")
            begun.append(len(counted("a", unshared)))
            apart("b", port=port)
            wait_until(lambda: counted("b", unshared), "the second host counts too")
        finally:
            gate.touch()

    coming = Thread(target=come)
    coming.start()
    try:
        workers = f"{first.tcp},tcp://127.0.0.1:{port}"
        assert values(unshared, workers, first.secret) == [0, 1] * SHARDS
    finally:
        coming.join()
    assert len(indexes(unshared, "b")) == 1
    early = {*counted("a", unshared)[: begun[0]]}
    assert early - {*counted("b", unshared)}, "it has counted all of them, as if nobody had told it"  # but some, before


def test_what_a_server_is_told_is_taken_only_of_the_same_shards(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_parts, "_SECONDS", 0.0)
    monkeypatch.setenv(index_mail.VARIABLE, str(tmp_path / "mail"))
    index, mail = tmp_path / "tar-x.index", IndexMail(tmp_path / "mail")
    names = [f"{number:02}.tar" for number in range(4)]
    stamps = {name: stamp_of(folder / name) for name in names}
    IndexParts(index, folder, KEY, stamps, names).put([index_one("tar", folder, names[0], index)])
    assert mail.collect() == [], "nobody opens a pipeline: no folder"
    mail.open()
    one = IndexParts(index, folder, KEY, stamps, names)
    one.put([index_one("tar", folder, name, index) for name in names[:3]])
    [(key, part)] = mail.collect()
    assert mail.collect() == []
    changed = folder / "00.tar"
    changed.write_bytes(bytes([changed.read_bytes()[0] ^ 1]) + changed.read_bytes()[1:])
    os.utime(changed, ns=(stamps["00.tar"].modified, stamps["00.tar"].modified))
    assert stamp_of(changed).may_be(stamps["00.tar"])
    index.with_name(f"{index.name}.another-0.part").write_bytes(b"damaged")
    for wrong in ("other-tar-cd.index", "../x.index", f"{key}/x", f"{key}\n", ""):
        with pytest.raises(ValueError, match="no key of an index"):
            mail.deliver(wrong, part)
    mail.deliver(key, part[:-1])
    mail.deliver("abc-tar-cd.index", part)
    for each in index.parent.glob("*.part"):
        each.unlink()
    assert sorted(IndexParts(index, folder, KEY, stamps, names).take(4)) == names, "another index, or cut off"
    mail.deliver(key, part)
    two = IndexParts(index, folder, KEY, stamps, names)
    assert sorted(two.take(4)) == ["00.tar", "03.tar"], "of the same size and time, with other bytes"
    mail.close()
    mail.close()
    assert not mail.folder.exists()


def test_large_parts_are_divided_and_shards_that_are_too_large_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_mail, "MAX_PART", 20_000)
    mail = IndexMail(tmp_path / "mail")
    mail.open()
    counted = Counted(Stamp(1, 2), 0, b"sample")
    sizes = {"a": 1000, "b": 9000, "c": 30_000, "d": 9000, "e": 10}
    mail.send(KEY, {name: IndexedShard(counted, 3, bytes(size)) for name, size in sizes.items()})
    parts = mail.collect()
    assert all(len(part) <= 20_000 for _, part in parts)
    found: list[str] = []
    for number, (_, part) in enumerate(parts):
        path = tmp_path / str(number)
        path.write_bytes(part)
        index = ShardIndex.open(path)
        assert index is not None
        found += index.entries
    assert sorted(found) == ["a", "b", "d", "e"]


# An index that somebody else has written


@pytest.fixture
def tars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of ten rows, with an index beside them that says of each shard that it has two."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    true, false = (fill_tars(tmp_path / name, {"a.tar": rows, "b.tar": rows}) for name, rows in (("t", 5), ("f", 2)))
    indexes = []
    for folder in (true, false):
        assert len(feed.tar(folder)) in (10, 4)
        index = ShardIndex.open(next((folder / FOLDER).iterdir()))
        assert index is not None
        indexes.append(index)
    [entries, others] = [index.entries for index in indexes]
    forged = {name: IndexedShard(entries[name].counted, others[name].rows, indexes[1].packed(name)) for name in entries}
    shard_index.write(next((true / FOLDER).iterdir()), forged)
    assert len(feed.tar(true)) == 4, "what this user has written is believed"
    return true


def of_others(path: Path, how: str) -> None:
    if how == "another user's":
        os.chown(path, 65534, 65534, follow_symlinks=False)
    elif how == "a link":
        path.rename(path.with_name("real"))
        path.symlink_to("real")
    elif how == "a fifo":
        path.unlink()
        os.mkfifo(path)
    else:
        path.chmod({"open to all": 0o666, "open to a group": 0o664}[how])


@pytest.mark.parametrize("how", ["open to all", "open to a group", "another user's", "a link", "a fifo"])
def test_an_index_that_others_can_have_written_is_not_believed(how: str, tars: Path) -> None:
    if how == "another user's":
        require("root")  # which alone gives files away
    of_others(next((tars / FOLDER).iterdir()), how)
    assert [row["__key__"] for row in feed.tar(tars)] == [row["__key__"] for row in feed.tar(tars)]
    assert len(feed.tar(tars)) == 10
    [index] = [path for path in (tars / FOLDER).iterdir() if path.suffix == ".index"]
    assert index.stat().st_mode & 0o777 == 0o644, "this user's own is there now"


def test_no_index_is_kept_in_a_folder_that_others_write_to(tars: Path, tmp_path: Path) -> None:
    (tars / FOLDER).chmod(0o777)
    next((tars / FOLDER).iterdir()).chmod(0o666)
    before = files(tars)
    assert len(feed.tar(tars)) == 10
    assert files(tars) == before
    assert len(list((tmp_path / "cache").rglob("*.index"))) == 1


@pytest.mark.parametrize("size", [0, 40, -1])
def test_an_index_that_is_cut_while_it_is_open_is_an_error_and_no_signal(size: int, tars: Path) -> None:
    source, path = feed.tar(tars), next((tars / FOLDER).iterdir())
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    with pytest.raises(ShardError, match=r"the index .* is damaged: the part of"):
        list(source)
