"""Shards that are not what they were: on a resume, beside a loader that runs, and while they are indexed."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import pickle
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import SOAK
from feed_data import flat
from feed_servers import Server
from source_data import fill_tars, tar_rows, tars, write_shard, write_tar

from headrace import feed
from headrace.errors import PipelineError, PositionError, ShardError
from headrace.feed import sources
from headrace.feed.sources import index_shards
from headrace.feed.sources.byte_ranges import stamp_of
from headrace.feed.sources.shard_index import IndexedShard
from headrace.instance.files import INDEX_FOLDER

COUNTS = {"a": 20, "c": 12}
OPTIONS: dict[str, Any] = {"batch_size": 8, "seed": 3, "shuffle": True}
ARRAYS: dict[str, Any] = OPTIONS | {"collate_fn": feed.stack_arrays}


def _first(loader: feed.DataLoader, state: dict[str, Any]) -> Any:
    loader.load_state_dict(state)
    return next(iter(loader))


def _rename(folder: Path) -> None:
    (folder / "a.tar").rename(folder / "b.tar")


def _replace(folder: Path) -> None:
    write_tar(folder / "a.tar", tar_rows("other", 20))


def _swap(folder: Path) -> None:
    """Bytes of a row's contents are others: sizes and places are as they were."""
    found = bytearray((folder / "a.tar").read_bytes())
    found[700:708] = bytes(8)
    (folder / "a.tar").write_bytes(found)


@pytest.mark.promise("feed-resume", "a resume with shards that were renamed or replaced is refused")
@pytest.mark.filterwarnings("ignore:fast-forwarding range")
@pytest.mark.parametrize("change", [_rename, _replace, _swap])
@pytest.mark.parametrize("kind", ["source", "pipeline", "sampler"])
def test_a_resume_notices_shards_that_were_renamed_or_replaced(
    change: Callable[[Path], None], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill_tars(tmp_path / "data", COUNTS)
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(folder))

    def loader() -> feed.DataLoader:
        if kind == "sampler":
            return feed.DataLoader(tars(), sampler=range(32), batch_size=8, seed=3)
        return feed.DataLoader(tars() if kind == "pipeline" else feed.tar(folder), collate_fn=list, **OPTIONS)

    first = loader()
    batches = iter(first)
    next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    assert len(state["shards"]) == 16
    for path in folder.glob("*.tar"):  # what a download changes is not noticed
        os.utime(path, ns=(0, 1))
    resumed = loader()
    resumed.load_state_dict(state)
    assert len(list(resumed)) == 3
    change(folder)
    resumed = loader()
    with pytest.raises(PositionError, match=r"shards=(.|\n)*those of before"):
        _first(resumed, state)
    resumed = loader()
    resumed.load_state_dict(state | {"shards": ""})
    assert len(list(resumed)) == 3


@pytest.mark.usefixtures("without_torch")
def test_hosts_tell_their_shards_digests_and_a_replica_that_differs_is_refused(
    tmp_path: Path, own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [fill_tars(tmp_path / host, COUNTS) for host in "xy"]
    write_tar(folders[1] / "c.tar", tar_rows("other", 12))
    servers = []
    for folder in folders:
        monkeypatch.setenv("SM_CHANNEL_TRAINING", str(folder))
        servers.append(own_server(folder.name))
    where: dict[str, Any] = {"secret_file": str(servers[0].secret)} | ARRAYS
    with feed.DataLoader(tars(), workers=servers[0].tcp, **where) as loader:
        next(iter(loader))
        state = loader.state_dict()
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(folders[0]))
    here = feed.DataLoader(tars(), **ARRAYS)
    next(iter(here))
    assert here.state_dict()["shards"] == state["shards"]
    with feed.DataLoader(tars(), workers=servers[1].tcp, **where) as loader:
        loader.load_state_dict(state)
        with pytest.raises(PositionError, match="shards="):
            next(iter(loader))
    both = feed.DataLoader(tars(), workers=f"{servers[0].tcp},{servers[1].tcp[6:]}", **where)
    with both, pytest.raises(PipelineError, match=r"shard 'c.tar' has 12 samples on .* they are not the same"):
        next(iter(both))


@pytest.mark.promise("feed-formats", "a shard that is added beside a running loader changes nothing for it")
@pytest.mark.usefixtures("without_torch")
def test_a_shard_that_is_added_beside_a_running_loader_changes_nothing_for_it(
    tmp_path: Path, own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill_tars(tmp_path / "data", COUNTS)
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(folder))
    with feed.DataLoader(tars(), **ARRAYS) as loader:
        expected = [flat(batch) for _ in range(2) for batch in loader]
    source = feed.tar(folder)
    packed = pickle.dumps(source)
    server = own_server("host", executors=1)
    with feed.DataLoader(tars(), workers=server.tcp, secret_file=str(server.secret), **ARRAYS) as loader:
        found = [flat(batch) for batch in loader]
        write_tar(folder / "b.tar", tar_rows("b", 5))
        assert len(feed.tar(folder)) == 37  # the index is another one now
        [executor] = server.executors()
        executor.kill()
        found += [flat(batch) for batch in loader]
    assert found == expected
    assert list(pickle.loads(packed)) == list(source)  # as a spawned worker opens it
    (folder / "a.tar").unlink()
    feed.tar(folder)
    with pytest.raises(ShardError, match=r"does not hold the shards any more .*: a\.tar"):
        pickle.loads(packed)


# Another shard of the same size and time of change


def _texts(source: feed.Source) -> list[Any]:
    return [row.get("text") or row["txt"] for row in source]


def _set_back(path: Path, before: os.stat_result) -> None:
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


KINDS = ["tar", "jsonl", "parquet", "arrow"]
HOWS = ["in place", "by another file", "by a link"]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that are counted."""
    names: list[str] = []
    count = index_shards.index_one
    monkeypatch.setattr(index_shards, "index_one", lambda *shard: names.append(shard[2]) or count(*shard))
    return names


@pytest.mark.promise("feed-formats", "another shard of the same size and modification time is counted again or noticed")
@pytest.mark.parametrize(
    ("kind", "change", "how"),
    [
        case
        for number, case in enumerate(itertools.product(KINDS, ["row", "layout"], HOWS))
        if SOAK or number % 3 == number // 3 % 3  # each kind and change by one of the ways
    ],
)
def test_the_next_source_sees_a_shard_of_the_same_size_and_time_as_the_one_before(
    kind: str, change: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "data"
    home.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if how == "by another file":
        (home / INDEX_FOLDER).write_text("a file is in the way, for root too")
    path = write_shard(kind, home / f"a.{kind}")
    if how == "by a link":
        path.rename(tmp_path / "one")
        path.symlink_to(tmp_path / "one")
    before = path.stat()
    assert len(_texts(getattr(feed, kind)(home))) == 1_500
    other = write_shard(kind, tmp_path / "other", change)
    expected = _texts(getattr(feed, kind)(tmp_path, "other"))
    if how == "in place":
        path.write_bytes(other.read_bytes())
    elif how == "by another file":
        os.utime(other, ns=(0, before.st_mtime_ns))
        other.replace(path)
    else:
        path.unlink()
        path.symlink_to(other)
    _set_back(path, before)
    assert _texts(getattr(feed, kind)(home)) == expected


@pytest.mark.promise("feed-formats", "another shard of the same size and modification time is counted again or noticed")
@pytest.mark.parametrize(
    ("kind", "workers"),
    [(kind, workers) for kind in KINDS for workers in (0, 1) if SOAK or not workers or kind == "tar"],
)
def test_a_shard_that_changes_while_it_is_open_is_noticed_also_when_its_time_is_set_back(
    kind: str, workers: int, tmp_path: Path
) -> None:
    path = write_shard(kind, tmp_path / f"a.{kind}")
    source = getattr(feed, kind)(tmp_path)
    expected = list(source)
    source = getattr(feed, kind)(tmp_path)
    with feed.DataLoader(source, batch_size=None, num_workers=workers, seed=1) as loader:
        rows = iter(loader)
        found = [next(rows)]
        before = path.stat()
        content = write_shard(kind, tmp_path / "other", "row").read_bytes()
        with path.open("r+b") as file:
            file.write(content)
        _set_back(path, before)
        with pytest.raises(ShardError, match=r"rows were counted: its status was changed(.|\n)*do not change shards"):
            found.extend(rows)
    assert found == expected[: len(found)]


@pytest.mark.parametrize("kind", KINDS)
def test_another_shard_of_the_same_size_and_time_is_noticed_by_who_opens_it_later(kind: str, tmp_path: Path) -> None:
    path = write_shard(kind, tmp_path / f"a.{kind}")
    before = path.stat()
    for change, told in (("", "it was replaced by another file"), ("row", "it was replaced by another file")):
        source = getattr(feed, kind)(tmp_path)
        write_shard(kind, tmp_path / "other", change).replace(path)
        _set_back(path, before)
        with pytest.raises(ShardError, match=rf"was changed since its rows were counted: {told}, with the size and t"):
            source[0]
    source = getattr(feed, kind)(tmp_path)
    path.write_bytes(path.read_bytes()[::-1])
    _set_back(path, before)
    with pytest.raises(ShardError, match=r"was changed since its rows were counted: its content is another one, with"):
        source[0]


@pytest.mark.usefixtures("without_torch")
def test_a_feed_server_notices_that_a_shard_s_time_was_set_back(
    tmp_path: Path, own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill_tars(tmp_path / "data", COUNTS)
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(folder))
    server = own_server("host", executors=1)
    options = ARRAYS | {"workers": server.tcp, "secret_file": str(server.secret)}

    def change(number: int) -> None:
        path = folder / "a.tar"
        before, content = path.stat(), bytearray(path.read_bytes())
        content[520 + number] ^= 1
        path.write_bytes(content)
        _set_back(path, before)

    with feed.DataLoader(tars(), **options) as loader:
        next(iter(loader))
        change(0)
        with pytest.raises(ShardError, match=r"a\.tar was changed since its rows were counted"):
            [list(loader) for _ in range(3)]
    with feed.DataLoader(tars(), **options) as loader, feed.DataLoader(tars(), **ARRAYS) as here:
        assert [flat(batch) for batch in loader] == [flat(batch) for batch in here]
    change(1)
    with feed.DataLoader(tars(), **options) as loader, feed.DataLoader(tars(), **ARRAYS) as here:
        assert [flat(batch) for batch in loader] == [flat(batch) for batch in here]


@pytest.mark.promise("feed-formats", "another shard of the same size and modification time is counted again or noticed")
def test_a_copy_of_shards_with_their_index_is_used_and_not_counted_again(tmp_path: Path, counted: list[str]) -> None:
    folder = fill_tars(tmp_path / "data", COUNTS)
    expected = list(feed.tar(folder))
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-rp", folder, copy], check=True)
    counted.clear()
    assert list(feed.tar(copy)) == expected
    assert list(feed.tar(copy)) == expected
    assert counted == []
    path = copy / "a.tar"
    before, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:520] + bytes([content[520] ^ 1]) + content[521:])
    _set_back(path, before)
    assert list(feed.tar(copy)) != expected
    assert counted == ["a.tar"]


def test_of_a_copy_that_differs_and_cannot_be_written_only_what_differs_is_counted(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill_tars(tmp_path / "data", COUNTS)
    feed.tar(folder)
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-rp", folder, copy], check=True)
    before = (copy / "a.tar").stat()
    write_tar(copy / "a.tar", [row | {"bin": row["bin"][::-1]} for row in tar_rows("a", COUNTS["a"])])
    _set_back(copy / "a.tar", before)
    counted.clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make = index_shards._locked
    monkeypatch.setattr(index_shards, "_locked", lambda path: _refused(path) if copy in path.parents else make(path))
    assert [row["bin"][::-1] for row in feed.tar(copy)][:20] == [row["bin"] for row in tar_rows("a", 20)]
    assert counted == ["a.tar"]
    feed.tar(copy)
    assert counted == ["a.tar"]


def _refused(path: Path) -> Any:
    raise OSError(errno.EROFS, "Read-only file system", str(path))


@pytest.mark.parametrize("kind", KINDS)
def test_other_rights_names_and_links_of_a_shard_change_nothing(kind: str, tmp_path: Path, counted: list[str]) -> None:
    path = write_shard(kind, tmp_path / f"a.{kind}")
    source = getattr(feed, kind)(tmp_path)
    expected = _texts(source)
    counted.clear()
    path.chmod(0o600)
    assert _texts(source) == expected
    (tmp_path / "link").hardlink_to(path)
    assert _texts(source) == expected
    assert _texts(getattr(feed, kind)(tmp_path)) == expected
    assert counted == []
    path.rename(tmp_path / "away")
    assert _texts(source) == expected
    (tmp_path / "link").unlink()
    (tmp_path / "away").unlink()
    assert _texts(source) == expected


def test_an_index_of_an_earlier_version_is_made_anew(tmp_path: Path, counted: list[str]) -> None:
    folder = fill_tars(tmp_path / "data", COUNTS)
    expected = list(feed.tar(folder))
    [index] = (folder / INDEX_FOLDER).glob("*.index")
    index.write_bytes(index.read_bytes().replace(b"headrace index 5", b"headrace index 4", 1))
    counted.clear()
    assert list(feed.tar(folder)) == expected
    assert sorted(counted) == ["a.tar", "c.tar"]


def test_a_shard_that_was_just_written_is_counted_once_the_clock_has_gone_on(tmp_path: Path) -> None:
    """So that whatever changes it then has another time of change of status, however coarse the clock is."""
    for number in range(5):
        path = write_tar(tmp_path / "a.tar", tar_rows(str(number), 3))
        outcome = index_shards.index_one(sources.KINDS["tar"], tmp_path, "a.tar", tmp_path / "lock")
        assert isinstance(outcome, IndexedShard)
        assert time.time_ns() - path.stat().st_ctime_ns >= index_shards._TICK
        assert outcome.counted.stamp == stamp_of(path)


def test_who_waits_for_an_index_waits_while_shards_are_counted_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill_tars(tmp_path / "data", COUNTS)
    monkeypatch.setattr(index_shards, "_LOCK_SECONDS", 0.3)
    lock = tmp_path / "lock"
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ShardError, match="has counted no shard for"), index_shards._locked(lock):
            pass
        ended = threading.Event()

        def count() -> None:  # four signs of life, each within the limit, all of them beyond it
            for _ in range(4):
                ended.wait(0.15)
                index_shards.index_one(sources.KINDS["tar"], folder, "a.tar", lock)
            fcntl.flock(held, fcntl.LOCK_UN)

        counting = threading.Thread(target=count)
        counting.start()
        with index_shards._locked(lock):
            assert not ended.is_set()
        counting.join()


def test_helpers_touch_the_lock_too(tmp_path: Path) -> None:
    folder = fill_tars(tmp_path / "data", COUNTS)
    lock = tmp_path / "lock"
    lock.touch()
    os.utime(lock, (0, 0))
    outcomes = index_shards._helped(sources.KINDS["tar"], folder, ["a.tar"], lock)
    assert isinstance(outcomes["a.tar"], IndexedShard)
    assert lock.stat().st_mtime > 0


def test_what_matches_and_is_no_shard_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.tar").symlink_to("gone.tar")
    with pytest.raises(ShardError, match=r"a\.tar is a link to a file that is not there"):
        feed.tar(tmp_path)
    (tmp_path / "a.tar").unlink()
    (tmp_path / "a.tar").mkdir()
    with pytest.raises(ShardError, match=r"a\.tar matches '\*\.tar' and is a folder"):
        feed.tar(tmp_path)
    write_tar(tmp_path / "a.tar" / "b.tar", tar_rows("b", 2))
    assert len(feed.tar(tmp_path, "**/*r")) == 2
    name = os.fsdecode(b"caf\xe9.tar")
    write_tar(tmp_path / "a.tar" / name, tar_rows("b", 2))
    with pytest.raises(ShardError, match=r"b'caf\\xe9\.tar' in .* is not UTF-8"):
        feed.tar(tmp_path / "a.tar")


def test_small_mistakes_are_told_in_small_words(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"tokens": [1, 2], "id": 1}\n{"tokens": [3], "id": 2}\n')
    source = feed.jsonl(tmp_path)
    with pytest.raises(TypeError, match=r"\.map\(\) takes a function of one row, got 3"):
        source.map(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"found by one number, got slice\(0, 1, None\)"):
        source[0:1]  # type: ignore[index]
    with pytest.raises(
        ValueError, match="batch_size=4 is the rows of one rank, and global_batch_size=4 those of all 2"
    ):
        feed.DataLoader(source, batch_size=4, global_batch_size=4, rank=0, world_size=2)
    told = r"batch\['tokens'\] has the shapes \(2,\) and \(1,\): make the rows equal in \.map"
    with pytest.raises(RuntimeError, match=told):
        next(iter(feed.DataLoader(source, batch_size=2)))
    with pytest.raises(ValueError, match=told):
        next(iter(feed.DataLoader(source.map(_arrays), batch_size=2, collate_fn=feed.stack_arrays)))
    with pytest.raises(RuntimeError, match=r"batch\['id'\] holds NoneType and int"):
        next(iter(feed.DataLoader([{"id": 1}, {"id": None}], batch_size=2)))
    with pytest.raises(KeyError, match=r"batch\['b'\] is not in every sample"):
        next(iter(feed.DataLoader([{"a": 1, "b": 2}, {"a": 1}], batch_size=2)))
    ragged = [{"tokens": [0] * length} for length in (3, 3, 5, 1)]
    with pytest.raises(
        RuntimeError, match=r"batch\['tokens'\] has the shapes \(3,\) and \(5,\)"
    ):  # as torch names them
        next(iter(feed.DataLoader(ragged, batch_size=4)))
    mixed = feed.mix({"a": [1, 2], "b": [{"x": 1}] * 2, "c": [3, 4]}, {"a": 1, "b": 1, "c": 1}, until="all")
    told = r"batch holds dict and int \(of the mixture's sources ('[ac]' and 'b'|'b' and '[ac]')\)"
    with pytest.raises((TypeError, RuntimeError), match=told):  # torch's own kind goes by the row that comes first
        list(feed.DataLoader(mixed, batch_size=6))


def test_what_is_no_state_is_refused() -> None:
    loader = feed.DataLoader([1, 2], batch_size=1, seed=1)
    with pytest.raises(PositionError, match=r"was given None\nhint: the checkpoint holds no state"):
        loader.load_state_dict(None)  # type: ignore[arg-type]
    loader.load_state_dict({})
    for wrong, told in (([], "was given none"), ([None], "something else"), ([{"foo": 1}], "something else")):
        with pytest.raises(PositionError, match=rf"merge_states takes a list of what .*{told}\nhint: save"):
            feed.merge_states(wrong)  # type: ignore[arg-type]
    with pytest.raises(PositionError, match="a state of the loader is damaged"):
        feed.merge_states([{"order": "lanes", "lanes": {"count": "x"}}])
    with pytest.raises(PositionError, match="same on all ranks"):
        feed.merge_states([loader.state_dict()])
    with pytest.raises(TypeError, match=r"has no len\(\): .*steps_per_epoch="):
        len(feed.DataLoader(lambda: iter([1]), batch_size=1))


def _arrays(row: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": np.array(row["tokens"])}
