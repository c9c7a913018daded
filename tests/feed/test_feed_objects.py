"""Shards that are objects of S3: the rows of the same files, few requests, and an error where one was changed."""

from __future__ import annotations

import importlib.util
import json
import os
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from feed_servers import Server
from object_server import ObjectServer, object_server
from pyarrow import parquet
from source_data import decode, fill_tars, objects, write_tar

from flaky_s3 import FlakyS3, flaky
from headrace import feed
from headrace.errors import ShardError, StorageError, UsageError
from headrace.feed import DataLoader
from headrace.feed.sources import shard_objects
from headrace.feed.sources.shard_objects import BLOCK, Entry, ObjectPath, _Blocks
from objectstore import ObjectStore

pytestmark = pytest.mark.needs("obstore")

COUNTS = {"a": 40, "b": 71, "deep/c": 33}


@pytest.fixture(autouse=True)
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test has a cache, a client and blocks of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    forget_clients()


def forget_clients() -> None:
    shard_objects._stores.clear()
    shard_objects._blocks.clear()


@pytest.fixture
def proxy(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyS3]:
    with flaky(s3.endpoint) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.endpoint)
        yield found


def upload(s3: ObjectStore, folder: Path) -> str:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_relative_to(folder / ".headrace-index"):
            s3.put(f"data/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return s3.uri("data")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tars" / "deep").mkdir(parents=True)
    return fill_tars(tmp_path / "tars", COUNTS)


def flat(batch: Any) -> list[bytes]:
    return [np.asarray(value).tobytes() for value in batch.values()]


@pytest.mark.promise(
    "feed-shards", "shards in S3 give the rows of the same files, through throttling and cut connections"
)
def test_the_rows_and_batches_are_those_of_the_files(s3: ObjectStore, folder: Path) -> None:
    uri = upload(s3, folder)
    here, there = feed.tar(folder, "**/*.tar"), feed.tar(uri, "**/*.tar")
    assert there.counts == here.counts
    assert there.shard_digests == here.shard_digests, "a run goes on on copies"
    assert list(there) == list(here)
    assert [name for name, _ in feed.tar(uri + "/").counts] == ["a.tar", "b.tar"]
    options: dict[str, Any] = {"batch_size": 8, "shuffle": feed.Window(8, 4), "seed": 3}
    with (
        DataLoader(there.map(decode), **options, num_workers=2) as served,
        DataLoader(here.map(decode), **options) as own,
    ):
        assert list(map(flat, served)) == list(map(flat, own))


@pytest.mark.usefixtures("without_torch")
def test_feed_servers_read_objects_and_one_may_be_killed(
    s3: ObjectStore, folder: Path, own_server: Callable[..., Server]
) -> None:
    uri = upload(s3, folder)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": feed.Window(8, 4), "seed": 3}
    options["collate_fn"] = feed.stack_arrays
    own = list(map(flat, DataLoader(objects(uri).build(), **options)))
    servers = [own_server(name) for name in ("one", "two")]
    both = ",".join([servers[0].tcp, servers[1].tcp.removeprefix("tcp://")])
    with DataLoader(objects(uri), **options, workers=both, secret_file=servers[0].secret) as loader:
        found = []
        for step, batch in enumerate(loader):
            found.append(flat(batch))
            if step == 3:
                servers[1].kill()
    assert found == own


def test_lines_and_row_groups_too(s3: ObjectStore, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for shard in ("x", "y"):
        lines = [json.dumps({"text": shard * row, "row": row}) for row in range(50)]
        (folder / f"{shard}.jsonl").write_text("\n".join(lines) + "\n")
        table = pa.table({"row": list(range(50)), "text": [shard * row for row in range(50)], "other": [1.5] * 50})
        parquet.write_table(table, folder / f"{shard}.parquet", row_group_size=16)
    uri = upload(s3, folder)
    assert list(feed.jsonl(uri)) == list(feed.jsonl(folder))
    columns = ["row", "text"]
    assert list(feed.parquet(uri, columns=columns)) == list(feed.parquet(folder, columns=columns))


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_an_object_of_another_kind_that_was_changed_is_named(s3: ObjectStore, tmp_path: Path, kind: str) -> None:
    (tmp_path / "rows").mkdir()
    for name, begin in (("a", 0), ("b", 40)):
        rows = [{"id": row} for row in range(begin, begin + 40)]
        path = tmp_path / "rows" / f"{name}.{kind}"
        if kind == "parquet":
            parquet.write_table(pa.Table.from_pylist(rows), path)
        else:
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = getattr(feed, kind)(upload(s3, tmp_path / "rows"))
    assert source[0]["id"] == 0
    s3.put(f"data/b.{kind}", (tmp_path / "rows" / f"a.{kind}").read_bytes())  # whole, of as many rows
    shard_objects._blocks.clear()
    with pytest.raises(ShardError, match=rf"s3://.*/data/b\.{kind} was changed since its rows were counted"):
        source[50]


def test_without_credentials_it_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    for opened in (feed.tar, feed.parquet, feed.jsonl):
        with pytest.raises(UsageError, match=r"no AWS credentials were found\nhint: set AWS_ACCESS_KEY_ID"):
            opened("s3://bucket/prefix/")


@pytest.mark.parametrize("opened", [feed.arrow, feed.hf])
def test_arrow_files_are_refused_where_they_cannot_be_mapped(opened: Any) -> None:
    with pytest.raises(ShardError, match=r"is an object\nhint: bring them to the hosts by a channel"):
        opened("s3://bucket/prefix/")


def test_the_index_is_kept_and_rows_share_requests(s3: ObjectStore, proxy: FlakyS3, folder: Path) -> None:
    uri = upload(s3, folder)
    feed.tar(uri)
    first = proxy.requests["GET"]
    assert first < 20, "headers that are near each other come together"
    source = feed.tar(uri)
    assert proxy.requests["GET"] == first + 1, "a list"
    chance = random.Random(5)
    order = list(range(len(source)))
    chance.shuffle(order)
    for row in order:
        source[row]
    assert proxy.requests["GET"] <= first + 3, "each object is smaller than a block"
    write_tar(folder / "b.tar", [{"__key__": "new", "cls": b"1"}])
    s3.put("data/b.tar", (folder / "b.tar").read_bytes())
    before = proxy.requests["GET"]
    assert feed.tar(uri).counts == [("a.tar", 40), ("b.tar", 1)]
    assert proxy.requests["GET"] <= before + 6, "what was not changed is not read again"


@pytest.mark.promise(
    "feed-shards", "shards in S3 give the rows of the same files, through throttling and cut connections"
)
def test_an_object_that_was_changed_or_removed_is_named(s3: ObjectStore, folder: Path) -> None:
    uri = upload(s3, folder)
    source = feed.tar(uri)
    s3.put("data/b.tar", b"x" * len((folder / "b.tar").read_bytes()))
    assert source[0]["cls"] == b"0"
    with pytest.raises(ShardError, match=r"s3://.*/data/b\.tar was changed since its rows were counted"):
        source[45]
    loader = DataLoader(source, batch_size=1, collate_fn=list, num_workers=1)
    with loader, pytest.raises(ShardError, match=r"b\.tar was changed"):
        list(loader)
    with pytest.raises(ShardError, match=r"b\.tar at offset 0: this is no tar file"):
        feed.tar(uri)
    s3.client.delete_object(Bucket=s3.bucket, Key="data/a.tar")
    shard_objects._blocks.clear()
    with pytest.raises(ShardError, match=r"a\.tar is gone"):
        source[0]


@pytest.mark.promise(
    "feed-shards", "shards in S3 give the rows of the same files, through throttling and cut connections"
)
def test_throttling_and_cut_connections_cost_time_and_nothing_else(
    s3: ObjectStore, proxy: FlakyS3, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = upload(s3, folder)
    expected = list(feed.tar(folder))
    monkeypatch.setattr(shard_objects, "FIRST_PAUSE", timedelta(milliseconds=1))
    forget_clients()
    proxy.errors, proxy.error, proxy.cuts = 0.2, (503, "SlowDown"), 0.2
    monkeypatch.setattr(shard_objects, "BLOCKS_MEMORY", 1)
    assert list(feed.tar(uri)) == expected
    assert proxy.requests["GET"] > 10
    proxy.down, proxy.cuts = True, 0.0
    with pytest.raises(StorageError, match="SlowDown"):
        feed.tar(uri)


@pytest.mark.parametrize(
    ("where", "pattern", "said"),
    [
        ("s3://", "*.tar", "names no bucket"),
        ("data", "*.zip", "no object in s3://.* matches"),
        ("none/", "*", "nothing"),
    ],
)
def test_what_is_not_there_is_named(s3: ObjectStore, folder: Path, where: str, pattern: str, said: str) -> None:
    upload(s3, folder)
    with pytest.raises(ShardError, match=said):
        feed.tar(where if "://" in where else s3.uri(where), pattern)


@pytest.fixture
def web() -> Iterator[ObjectServer]:
    with object_server() as found:
        yield found


def account(name: str, endpoint: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets what a user of Google's or Azure's store has in the environment, for a server of the tests."""
    if name == "gs":
        path = folder / "account.json"
        nothing = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        path.write_text(json.dumps({"gcs_base_url": endpoint, "disable_oauth": True, **nothing}))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(path))
    else:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        monkeypatch.setenv("AZURE_ENDPOINT", endpoint)
        monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")


@pytest.mark.promise("feed-shards", "shards in Google Cloud, Azure and on web servers give the rows of the same files")
@pytest.mark.parametrize("store", ["gs", "az", "http"])
def test_other_stores_give_the_rows_of_the_files(
    web: ObjectServer, folder: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.files = {f"shelf/data/{name}.tar": (folder / f"{name}.tar").read_bytes() for name in COUNTS}
    if store == "http":
        there = feed.tar(f"{web.url}/shelf/data/", "a.tar")
        assert list(there) == list(feed.tar(folder, "a.tar"))
        with pytest.raises(ShardError, match=r"cannot be listed, so '\*\.tar' matches nothing\nhint: .*0146"):
            feed.tar(f"{web.url}/shelf/data/", "*.tar")
        web.files |= {f"n/{number:02}.tar": web.files["shelf/data/b.tar"] for number in range(8, 11)}
        assert [name for name, _ in feed.tar(f"{web.url}/n", "{08..10}.tar").counts] == ["08.tar", "09.tar", "10.tar"]
        with pytest.raises(StorageError, match=r"n/11\.tar: there is no such object"):
            feed.tar(f"{web.url}/n", "{08..11}.tar")
        return
    account(store, web.url, folder, monkeypatch)
    there, here = feed.tar(f"{store}://shelf/data", "**/*.tar"), feed.tar(folder, "**/*.tar")
    assert there.shard_digests == here.shard_digests
    assert list(there) == list(here)


@pytest.mark.promise("feed-shards", "shards in Google Cloud, Azure and on web servers give the rows of the same files")
@pytest.mark.parametrize("etags", [True, False])
def test_a_server_without_conditions_gives_no_other_bytes(web: ObjectServer, folder: Path, etags: bool) -> None:
    web.files["a.tar"], web.conditions, web.etags = (folder / "a.tar").read_bytes(), False, etags
    source = feed.tar(web.url, "a.tar")
    assert source[0]["cls"] == b"0"
    shard_objects._blocks.clear()
    web.files["a.tar"] += b"x"
    with pytest.raises(ShardError, match=r"a\.tar was changed since its rows were counted"):
        source[1]


@pytest.mark.promise("feed-shards", "shards in Google Cloud, Azure and on web servers give the rows of the same files")
def test_workers_forked_from_a_process_that_has_read_objects_read_them_too(web: ObjectServer, folder: Path) -> None:
    """The library's threads stay behind at a fork, and a request would wait for them without end."""
    web.files["b.tar"] = (folder / "b.tar").read_bytes()
    source = feed.tar(web.url, "b.tar")
    expected = [row["cls"] for row in source]
    for _ in range(2):  # the trainer's own library goes on
        with DataLoader(source, 8, num_workers=2, collate_fn=list, multiprocessing_context="fork") as loader:
            assert [row["cls"] for batch in loader for row in batch] == expected
        shard_objects._blocks.clear()
        assert source[70]["cls"] == expected[70]


def test_a_profile_of_aws_has_the_key_the_region_and_the_endpoint(
    s3: ObjectStore, proxy: FlakyS3, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = upload(s3, folder)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    key = {"Version": 1, "AccessKeyId": "OFPROCESS", "SecretAccessKey": "x", "SessionToken": "t"}
    (tmp_path / "key.json").write_text(json.dumps(key))
    (tmp_path / "config").write_text(
        f"[profile mine]\nregion = eu-west-3\nendpoint_url = {proxy.endpoint}\n"
        f"credential_process = cat {tmp_path / 'key.json'}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert list(feed.tar(uri)) == list(feed.tar(folder))
    assert "Credential=OFPROCESS/" in proxy.signed
    assert "/eu-west-3/s3/" in proxy.signed


def test_an_endpoint_of_s3_alone_comes_first(
    s3: ObjectStore, proxy: FlakyS3, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = upload(s3, folder)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    feed.tar(uri)
    assert proxy.requests["GET"] > 0


def test_without_botocore_the_environment_says_how_s3_is_reached(
    s3: ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = upload(s3, folder)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name == "botocore" else found(name, *of))
    assert list(feed.tar(uri)) == list(feed.tar(folder))


def test_an_error_shows_no_query_of_a_url() -> None:
    error = ValueError("GET http://h/a?sig=secret&x=1 failed (http://h/b?sig=secret)\n\nDebug source:\nx")
    assert shard_objects._words(error) == "GET http://h/a failed (http://h/b)"


class Counted:
    """An object in memory that counts what is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        self.content = random.Random(1).randbytes(size)
        self.asked: list[int] = []
        monkeypatch.setattr(ObjectPath, "read", lambda _, begin, end: self.read(begin, end))

    def read(self, begin: int, end: int) -> bytes:
        self.asked.append(end - begin)
        return self.content[begin:end]


def read_rows(blocks: _Blocks, counted: Counted, order: list[int], row: int, follows: Callable[[int], bool]) -> None:
    path = ObjectPath("s3://b", Entry("k", len(counted.content), "e"))
    for number in order:
        found = blocks.read(path, number * row, (number + 1) * row, follows=follows(number))
        assert found == counted.content[number * row : (number + 1) * row]


def test_blocks_are_read_ahead_and_given_up_where_they_do_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    size, row = 24 * BLOCK, 30_000
    rows = list(range(size // row))
    counted = Counted(monkeypatch, size)
    read_rows(_Blocks(64 * BLOCK), counted, rows, row, lambda number: number > 0)
    assert len(counted.asked) <= 6, "rows that follow each other: several blocks in a GET"
    counted.asked.clear()
    order = [rows[at] for at in torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).tolist()]
    read_rows(_Blocks(64 * BLOCK), counted, order, row, lambda _: False)
    assert len(counted.asked) <= 24, "every block once"
    counted.asked.clear()
    read_rows(_Blocks(2 * BLOCK), counted, 3 * order, row, lambda _: False)
    assert counted.asked.count(row) > len(order), "blocks of which hardly a row is used are not read"
