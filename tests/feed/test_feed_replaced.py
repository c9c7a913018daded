"""Shards that are not what they were: on a resume, beside a loader that runs, and while they are indexed."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from feed_data import flat
from feed_servers import Server
from source_data import fill_tars, tar_rows, tars, write_tar

from headrace import feed
from headrace.errors import PipelineError, PositionError, ShardError
from headrace.feed.sources import index_shards

COUNTS = {"a": 20, "c": 12}
OPTIONS: dict[str, Any] = {"batch_size": 8, "seed": 3, "shuffle": True}


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


def test_hosts_tell_their_shards_digests_and_a_replica_that_differs_is_refused(
    tmp_path: Path, own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [fill_tars(tmp_path / host, COUNTS) for host in "xy"]
    write_tar(folders[1] / "c.tar", tar_rows("other", 12))
    servers = []
    for folder in folders:
        monkeypatch.setenv("SM_CHANNEL_TRAINING", str(folder))
        servers.append(own_server(folder.name))
    where: dict[str, Any] = {"secret_file": str(servers[0].secret)} | OPTIONS
    with feed.DataLoader(tars(), workers=servers[0].tcp, **where) as loader:
        next(iter(loader))
        state = loader.state_dict()
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(folders[0]))
    here = feed.DataLoader(tars(), **OPTIONS)
    next(iter(here))
    assert here.state_dict()["shards"] == state["shards"]
    with feed.DataLoader(tars(), workers=servers[1].tcp, **where) as loader:
        loader.load_state_dict(state)
        with pytest.raises(PositionError, match="shards="):
            next(iter(loader))
    both = feed.DataLoader(tars(), workers=f"{servers[0].tcp},{servers[1].tcp[6:]}", **where)
    with both, pytest.raises(PipelineError, match=r"shard 'c.tar' has 12 samples on .* they are not the same"):
        next(iter(both))


def test_a_shard_that_is_added_beside_a_running_loader_changes_nothing_for_it(
    tmp_path: Path, own_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill_tars(tmp_path / "data", COUNTS)
    monkeypatch.setenv("SM_CHANNEL_TRAINING", str(folder))
    with feed.DataLoader(tars(), **OPTIONS) as loader:
        expected = [flat(batch) for _ in range(2) for batch in loader]
    source = feed.tar(folder)
    packed = pickle.dumps(source)
    server = own_server("host", executors=1)
    with feed.DataLoader(tars(), workers=server.tcp, secret_file=str(server.secret), **OPTIONS) as loader:
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
                index_shards.index_one("tar", folder, "a.tar", lock)
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
    outcomes = index_shards._helped("tar", folder, ["a.tar"], lock)
    assert outcomes[0].indexed is not None
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
    import numpy as np

    return {"tokens": np.array(row["tokens"])}
