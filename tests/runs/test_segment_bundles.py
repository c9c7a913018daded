"""Bundles of segments: a long record is read with few requests, and without them nothing is different."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_segments import PLACE, Memory, bundles_of, copy_of, files_of, grow, writer_of

from headrace.errors import RecordDamaged, StorageError
from headrace.runs import RunPaths, Stream, create_run
from headrace.runs.segments import BUNDLES, COUNT, MOST_BYTES, in_bundles, segments_of

LONG = 3 * COUNT + 7


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return create_run("job", runs=tmp_path / "runs")


def store_long(run: RunPaths, store: Memory, segments: int = LONG, line: bytes = b"a line\n") -> None:
    """Stores a record by one writer, which finds something new so many times."""
    writer, log = writer_of(run, store), run.log(Stream("g", "algo-1", "0"))
    for _ in range(segments):
        grow(log, line)
        assert writer.store() > 0


def bundles_in(store: Memory) -> list[str]:
    return sorted(key for key in store.objects if f"/{BUNDLES}/" in key)


@pytest.mark.promise("runs", "a long record is read with few requests; without bundles nothing is missing")
def test_a_long_record_is_read_with_a_request_for_each_bundle_and_for_each_segment_of_the_rest(
    run: RunPaths, tmp_path: Path
) -> None:
    store = Memory()
    store_long(run, store)
    assert store.requests.count("put") == LONG + 3, "one more for each bundle"
    assert [len(segments_of(store.objects[uri], uri)) for uri in bundles_in(store)] == [COUNT] * 3
    copy = copy_of(store, f"{PLACE}/{run.id}", tmp_path / "copy")
    store.requests.clear()
    copy.update()
    assert store.requests.count("get") == 3 + 7
    assert (copy.segments, files_of(copy.paths)) == (LONG, files_of(run))
    store.requests.clear()
    copy.update()
    assert store.requests == ["list", "list"], "who has it all looks for no bundles"


@pytest.mark.promise("runs", "a long record is read with few requests; without bundles nothing is missing")
def test_without_bundles_every_segment_is_there(run: RunPaths, tmp_path: Path) -> None:
    store = Memory()
    store_long(run, store)
    for uri in bundles_in(store):
        del store.objects[uri]
    copy = copy_of(store, f"{PLACE}/{run.id}", tmp_path / "copy")
    copy.update()
    assert (copy.segments, files_of(copy.paths)) == (LONG, files_of(run))


def test_a_bundle_that_cannot_be_stored_holds_nothing_up(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Memory):
        def write(self, data: bytes, uri: str) -> None:
            if f"/{BUNDLES}/" in uri:
                raise StorageError("no answer")
            super().write(data, uri)

    store = Refusing()
    store_long(run, store)
    assert (len(store.objects), bundles_in(store)) == (LONG, [])


def test_large_segments_are_not_stored_twice(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    bundles_of(20, monkeypatch)
    store = Memory()
    store_long(run, store, 12, b"x" * (MOST_BYTES // 4) + b"\n")
    assert len(store.objects) > 20
    assert bundles_in(store) == []
    store_long(run, store, 41, b"x" * 1000 + b"\n")
    assert len(bundles_in(store)) == 2


def test_a_copy_that_broke_off_within_a_bundle_goes_on(run: RunPaths, tmp_path: Path) -> None:
    store = Memory()
    store_long(run, store, 50)
    copy = copy_of(store, f"{PLACE}/{run.id}", tmp_path / "copy")
    copy.update()
    store = store_again(store)
    later = writer_of(run, store)
    log = run.log(Stream("g", "algo-1", "0"))
    for _ in range(2 * COUNT):
        grow(log, b"another line\n")
        later.store()
    copy._store = store
    copy.update()
    assert files_of(copy.paths) == files_of(run)


def store_again(store: Memory) -> Memory:
    """The same objects."""
    again = Memory()
    again.objects = store.objects
    return again


def test_a_bundle_replaces_all_that_has_its_numbers_and_nothing_else() -> None:
    names = [f"{number:010d}-a" for number in range(1, 8)]
    names.insert(3, "0000000003-b")
    assert in_bundles(names, ["0000000004-a-3"]) == [
        ("0000000001-a", False),
        ("0000000004-a-3", True),
        *[(name, False) for name in names[5:]],
    ]
    everything = [(name, False) for name in names]
    assert in_bundles(names, ["0000000009-a-3"]) == everything, "it ends behind what is wanted"
    assert in_bundles(names[2:], ["0000000004-a-4"]) == everything[2:], "it begins before what is wanted"
    assert in_bundles(names, ["0000000004-a", "0000000004-a-x"]) == everything, "no names of bundles"


@pytest.mark.parametrize(
    "data",
    [
        b"junk",
        b'{"version":99,"segments":[{"name":"0000000001-a","size":1}]}\nx',
        b'{"version":1,"segments":[]}\n',
        b'{"version":1,"segments":[{"name":"0000000001-a","size":2}]}\nx',
        b'{"version":1,"segments":[{"name":"0000000001-a","size":1},{"name":"0000000003-a","size":0}]}\nx',
        b'{"version":1,"segments":[{"name":"0000000001-a","size":2},{"name":"0000000002-a","size":-1}]}\nx',
    ],
)
def test_what_is_no_bundle_is_named(data: bytes) -> None:
    with pytest.raises(RecordDamaged, match="s3://b/x"):
        segments_of(data, "s3://b/x")
