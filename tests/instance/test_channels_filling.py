"""File channels: all of a channel or nothing, and what was there already is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from channel_store import FakeStore

from headrace.errors import HeadraceError, ObjectChanged, ObjectMissing, StorageError, UsageError
from headrace.instance.channels import channel_links, download, object_listing
from headrace.instance.channels.stage_orders import ChannelOrder, StageOrder
from headrace.instance.storage import Store


def channel(**changes: object) -> ChannelOrder:
    return ChannelOrder(**{"name": "train", "uri": "s3://b/train", "hosts": ("algo-1", "algo-2")} | changes)


def files(folder) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def store() -> FakeStore:
    return FakeStore({f"s3://b/train/{name}": name.encode() * 3 for name in ("a", "b", "c/d", "c/e", "f")})


def test_a_replicated_channel_is_there_once(tmp_path, store) -> None:
    told = []
    tally = download.fill(channel(), tmp_path, store, lambda tally: told.append((tally.files, tally.bytes)))
    assert files(tmp_path / "data") == {f"0/{name}": name.encode() * 3 for name in ("a", "b", "c/d", "c/e", "f")}
    assert (tally.files, tally.files_total, tally.bytes, tally.bytes_total) == (5, 5, 27, 27)
    assert told[0] == (1, 3)
    assert told[-1] == (5, 27)
    assert not (tmp_path / "incoming").exists()


def test_a_sharded_channel_has_one_folder_a_host_and_an_empty_one_for_whom_nothing_is_left(tmp_path, store) -> None:
    order = channel(distribution="ShardedByS3Key", hosts=tuple(f"algo-{number}" for number in range(1, 8)))
    download.fill(order, tmp_path, store)
    shares = [sorted(files(tmp_path / "data" / str(place))) for place in range(7)]
    assert shares == [["a"], ["b"], ["c/d"], ["c/e"], ["f"], [], []]


def test_every_host_finds_its_share_under_the_name(tmp_path, store) -> None:
    order = channel(distribution="ShardedByS3Key")
    bases = {host: str(tmp_path / host) for host in order.hosts}
    for base in bases.values():
        Path(base, "input/data").mkdir(parents=True)
    stage = StageOrder("run", str(tmp_path / "channels"), bases, (order,))
    download.fill(order, stage.area("train"), store)
    channel_links.place(stage, order, stage.area("train") / "data")
    channel_links.place(stage, order, stage.area("train") / "data")  # a second attempt finds it done
    seen = {host: sorted(files(tmp_path / host / "input/data/train")) for host in order.hosts}
    assert seen == {"algo-1": ["a", "c/d", "f"], "algo-2": ["b", "c/e"]}


def test_of_some_hosts_only_their_shares_come(tmp_path, store) -> None:
    order = channel(distribution="ShardedByS3Key")
    tally = download.fill(order, tmp_path, store, places=(1,))
    assert store.downloads == ["s3://b/train/b", "s3://b/train/c/e"]
    assert files(tmp_path / "data") == {"1/b": b"bbb", "1/c/e": b"c/e" * 3}
    assert (tally.files, tally.files_total, tally.bytes, tally.bytes_total) == (2, 2, 12, 12)
    again = download.fill(order, tmp_path, store, places=(1,))
    assert (again.files, again.files_total, again.bytes) == (2, 2, 12)


def test_the_name_is_not_taken_from_somebody_else(tmp_path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(FileExistsError):
        channel_links.link(tmp_path / "train", tmp_path / "elsewhere")


class Interrupted(BaseException):
    pass


def interrupt(store: FakeStore, at: str) -> None:
    def before(uri: str) -> None:
        if uri.endswith(at):
            raise Interrupted

    store.before = before


def test_an_interrupted_download_goes_on(tmp_path, store) -> None:
    interrupt(store, "c/e")
    with pytest.raises(Interrupted):
        download.fill(channel(), tmp_path, store)
    assert not (tmp_path / "data").exists()
    store.before = lambda _: None
    store.downloads.clear()
    tally = download.fill(channel(), tmp_path, store)
    assert store.downloads == ["s3://b/train/c/e", "s3://b/train/f"]
    assert (tally.files, tally.bytes) == (5, 27)
    assert len(files(tmp_path / "data" / "0")) == 5
    store.downloads.clear()
    assert download.fill(channel(), tmp_path, store).files == 5
    assert store.downloads == []


@pytest.mark.parametrize("change", ["content", "size", "gone", "cut", "partial", "shares"])
def test_what_is_not_what_is_listed_any_more_is_fetched_again(tmp_path, store, change) -> None:
    interrupt(store, "f")
    with pytest.raises(Interrupted):
        download.fill(channel(), tmp_path, store)
    store.before = lambda _: None
    store.downloads.clear()
    order = channel()
    expected = ["s3://b/train/a", "s3://b/train/f"]
    if change == "content":
        store.objects["s3://b/train/a"] = b"AAA"
    elif change == "size":
        store.objects["s3://b/train/a"] = b"longer than before"
    elif change == "gone":
        del store.objects["s3://b/train/a"]
        expected = ["s3://b/train/f"]
    elif change == "cut":  # somebody was in the stage area
        (tmp_path / "incoming/0/a").write_bytes(b"a")
    elif change == "partial":
        (tmp_path / "incoming/0/.headrace-part-1-1").write_bytes(b"a")
        expected = ["s3://b/train/f"]
    elif change == "shares":
        order = channel(distribution="ShardedByS3Key")
        expected = ["s3://b/train/b", "s3://b/train/c/e", "s3://b/train/f"]
    download.fill(order, tmp_path, store)
    assert store.downloads == expected
    flat = {name.split("/", 1)[1]: data for name, data in files(tmp_path / "data").items()}
    assert flat == {uri.removeprefix("s3://b/train/"): data for uri, data in store.objects.items()}


def changed(store: FakeStore, uri: str) -> None:
    store.objects[uri] = b"other"


def vanished(store: FakeStore, uri: str) -> None:
    del store.objects[uri]


@pytest.mark.parametrize(("fault", "error"), [(changed, ObjectChanged), (vanished, ObjectMissing)])
def test_an_object_that_changes_or_vanishes_meanwhile_is_named_and_nothing_is_visible(
    tmp_path, store, fault, error
) -> None:
    def before(uri: str) -> None:
        store.before = lambda _: None
        fault(store, "s3://b/train/c/d")

    store.before = before
    with pytest.raises(error, match=r"channel 'train': s3://b/train/c/d"):
        download.fill(channel(), tmp_path, store)
    assert not (tmp_path / "data").exists()


def test_a_body_that_ends_too_early_unnoticed_is_seen_by_its_size(tmp_path, store) -> None:
    store.short.add("s3://b/train/b")
    with pytest.raises(StorageError, match=r"channel 'train': s3://b/train/b: 2 bytes came, 3 were listed"):
        download.fill(channel(), tmp_path, store)
    assert not (tmp_path / "data").exists()


def test_a_disk_that_is_too_small_is_seen_before_anything_is_fetched(tmp_path, store, monkeypatch) -> None:
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: download.shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(StorageError, match=r"channel 'train': 0\.000 GB are to be downloaded") as error:
        download.fill(channel(), tmp_path, store)
    assert "FastFile" in error.value.hint
    assert store.downloads == []


def test_a_prefix_without_objects_is_an_error(tmp_path) -> None:
    with pytest.raises(UsageError, match="channel 'train': s3://b/train: there is no object whose key begins so"):
        download.fill(channel(), tmp_path, FakeStore({"s3://b/other": b""}))


def test_a_manifest_brings_what_it_names_in_its_order(tmp_path, store) -> None:
    store.objects["s3://b/manifest"] = b'[{"prefix": "s3://b/train/"}, "f", "c/d", "a"]'
    order = channel(uri="s3://b/manifest", data_type="ManifestFile", distribution="ShardedByS3Key")
    assert [item.name for item in object_listing.list_items(order, store)] == ["f", "c/d", "a"]
    download.fill(order, tmp_path, store)
    assert sorted(files(tmp_path / "data")) == ["0/a", "0/f", "1/c/d"]


def test_an_object_that_a_manifest_names_and_that_is_not_there_is_named(tmp_path, store) -> None:
    store.objects["s3://b/manifest"] = b'[{"prefix": "s3://b/train/"}, "f", "nowhere"]'
    order = channel(uri="s3://b/manifest", data_type="ManifestFile")
    with pytest.raises(HeadraceError, match="'train': s3://b/manifest names s3://b/train/nowhere, which is not there"):
        download.fill(order, tmp_path, store)


def test_files_of_this_machine_are_linked_not_copied(tmp_path) -> None:
    data = tmp_path / "local"
    for name in ("b", "a", "sub/c"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(name)
    area = tmp_path / "area"
    area.mkdir()
    with Store() as store:
        download.fill(channel(uri=str(data), distribution="ShardedByS3Key"), area, store)
        assert {name: data.decode() for name, data in files(area / "data").items()} == {
            "0/a": "a",
            "0/sub/c": "sub/c",
            "1/b": "b",
        }
        assert (area / "data/0/sub/c").is_symlink()
        (tmp_path / "m.json").write_text('[{"prefix": "local/"}, "sub/c"]')
        manifest = tmp_path / "area2"
        manifest.mkdir()
        download.fill(channel(uri=str(tmp_path / "m.json"), data_type="ManifestFile"), manifest, store)
    assert files(manifest / "data") == {"0/sub/c": b"sub/c"}
