"""Hosts make an index together, by a folder that they share; one that dies changes nothing."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from feed_servers import wait_until
from source_data import fill_tars

from headrace import feed
from headrace.errors import ShardError
from headrace.feed.sources import KINDS, index_shards, shard_index
from headrace.feed.sources.byte_ranges import stamp_of
from headrace.feed.sources.index_shards import IndexParts, index_one
from headrace.feed.sources.shard_index import IndexedShard, ShardIndex
from headrace.instance.files import INDEX_FOLDER
from needs import require

pytestmark = pytest.mark.usefixtures("without_torch")
SHARDS = 60
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
    return sorted(path.name for path in (folder / INDEX_FOLDER).iterdir())


@pytest.mark.promise(
    "feed-formats", "hosts that share a folder make its index together, also when one of them is killed"
)
def test_two_hosts_share_the_work_and_leave_one_index(folder: Path) -> None:
    hosts = [host(name, folder) for name in "ab"]
    told = [each.communicate(timeout=100)[0] for each in hosts]
    assert told == [f"{2 * SHARDS}\n"] * 2
    of = [counted(name, folder) for name in "ab"]
    assert {*of[0], *of[1]} == {path.name for path in folder.glob("*.tar")}
    assert all(len(each) < SHARDS for each in of), "neither counted all"
    assert len(of[0]) + len(of[1]) < 2 * SHARDS - 10, of
    [index] = files(folder)
    found = ShardIndex.open(folder / INDEX_FOLDER / index)
    assert found is not None
    assert len(found.entries) == SHARDS
    assert [int(row["cls"]) for row in feed.tar(folder)] == [0, 1] * SHARDS


@pytest.mark.promise(
    "feed-formats", "hosts that share a folder make its index together, also when one of them is killed"
)
def test_what_a_killed_host_has_counted_is_not_counted_again(folder: Path) -> None:
    first = host("a", folder)
    wait_until(lambda: list((folder / INDEX_FOLDER).glob("*.part")), "a part is written")
    first.kill()
    first.communicate()
    done: set[str] = set()
    for path in (folder / INDEX_FOLDER).glob("*.part"):
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
    monkeypatch.setattr(index_shards, "_SECONDS", 0.0)
    index = folder / INDEX_FOLDER / "tar-x.index"
    index.parent.mkdir()
    names = [f"{number:02}.tar" for number in range(6)]
    stamps = {name: stamp_of(folder / name) for name in names}
    lock = index.with_name("lock")
    one, two = IndexParts(index, folder, stamps, {}), IndexParts(index, folder, stamps, {})
    one.put({name: index_one(KINDS["tar"], folder, name, lock) for name in names[:3]} | {"05.tar": "broken"})
    other = stamps | {"00.tar": stamps["00.tar"]._replace(modified=1)}
    three = IndexParts(index, folder, other, {})
    assert sorted(two.take(6)) == names[3:], "a broken one is for everybody to find"
    assert {name: each.rows for name, each in two.indexed.items()} == dict.fromkeys(names[:3], 2)
    assert sorted(three.take(6)) == ["00.tar", *names[3:]]
    assert (sorted(one.take(6)), one.problems) == (names[3:], ["broken"])
    [part] = index.parent.glob("*.part")
    part.write_bytes(part.read_bytes()[:-1])
    four = IndexParts(index, folder, stamps, {})
    assert sorted(four.take(6)) == names, "a part that was cut off is none"
    four.clear()
    assert not list(index.parent.glob("*.part"))


# An index that somebody else has written


@pytest.fixture
def tars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of ten rows, with an index beside them that says of each shard that it has two."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    true, false = (fill_tars(tmp_path / name, {"a.tar": rows, "b.tar": rows}) for name, rows in (("t", 5), ("f", 2)))
    indexes = []
    for folder in (true, false):
        assert len(feed.tar(folder)) in (10, 4)
        index = ShardIndex.open(next((folder / INDEX_FOLDER).iterdir()))
        assert index is not None
        indexes.append(index)
    [entries, others] = [index.entries for index in indexes]
    forged = {name: IndexedShard(entries[name].counted, others[name].rows, indexes[1].packed(name)) for name in entries}
    shard_index.write(next((true / INDEX_FOLDER).iterdir()), forged)
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


@pytest.mark.promise(
    "feed-formats", "an index that another user can have written is not used; one that is cut is an error"
)
@pytest.mark.parametrize("how", ["open to all", "open to a group", "another user's", "a link", "a fifo"])
@pytest.mark.promise("security", "an index that others can have written is not believed; a cut one is an error")
def test_an_index_that_others_can_have_written_is_not_believed(how: str, tars: Path) -> None:
    if how == "another user's":
        require("root")  # which alone gives files away
    of_others(next((tars / INDEX_FOLDER).iterdir()), how)
    assert [row["__key__"] for row in feed.tar(tars)] == [row["__key__"] for row in feed.tar(tars)]
    assert len(feed.tar(tars)) == 10
    [index] = [path for path in (tars / INDEX_FOLDER).iterdir() if path.suffix == ".index"]
    assert index.stat().st_mode & 0o777 == 0o644, "this user's own is there now"


@pytest.mark.promise(
    "feed-formats", "an index that another user can have written is not used; one that is cut is an error"
)
def test_no_index_is_kept_in_a_folder_that_others_write_to(tars: Path, tmp_path: Path) -> None:
    (tars / INDEX_FOLDER).chmod(0o777)
    next((tars / INDEX_FOLDER).iterdir()).chmod(0o666)
    before = files(tars)
    assert len(feed.tar(tars)) == 10
    assert files(tars) == before
    assert len(list((tmp_path / "cache").rglob("*.index"))) == 1


@pytest.mark.promise(
    "feed-formats", "an index that another user can have written is not used; one that is cut is an error"
)
@pytest.mark.parametrize("size", [0, 40, -1])
@pytest.mark.promise("security", "an index that others can have written is not believed; a cut one is an error")
def test_an_index_that_is_cut_while_it_is_open_is_an_error_and_no_signal(size: int, tars: Path) -> None:
    source, path = feed.tar(tars), next((tars / INDEX_FOLDER).iterdir())
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    with pytest.raises(ShardError, match=r"the index .* is damaged: the part of"):
        list(source)
