"""The record of a run as segments in an object store: whatever dies or fails, a copy has the same bytes in the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from effort import SOAK

from headrace.errors import RecordDamaged, RunNotFound, StorageError, UsageError
from headrace.insight import cost_report
from headrace.instance.storage import Store
from headrace.runs import (
    EventWriter,
    LogWriter,
    Run,
    RunPaths,
    Status,
    Stream,
    create_run,
    segment_reader,
    segments,
)
from headrace.runs.describe import run_line
from headrace.runs.events import JobStarted, RunFinished
from headrace.runs.record_pieces import BATCH_BYTES, PIECE_BYTES
from headrace.runs.segment_reader import RecordCopy, open_copy, read_copied
from headrace.runs.segment_writer import SegmentWriter
from headrace.runs.segments import Piece, SegmentHeader, attempt_place, encode, find_record, is_recorded, segment_name
from headrace.runs.store import COPIED
from objectstore import ObjectStore

PLACE = "s3://bucket/runs"


class Memory:
    """Objects in memory, which can be told to fail.

    Attributes:
        objects: by place.
        requests: the kind of each request so far.
        fails: says whether a write fails, and whether the object is there all the same.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.fails: Callable[[], tuple[bool, bool]] = lambda: (False, False)
        self._lock = threading.Lock()

    def names(self, uri: str, after: str = "") -> list[str]:
        self.requests.append("list")
        with self._lock:
            below = [key[len(uri) + 1 :] for key in self.objects if key.startswith(uri + "/")]
        return sorted(name for name in below if "/" not in name and name > after)

    def folders(self, uri: str, beginning: str = "") -> list[str]:
        self.requests.append("list")
        with self._lock:
            below = [key[len(uri) + 1 :] for key in self.objects if key.startswith(f"{uri}/{beginning}")]
        return sorted({name.partition("/")[0] for name in below if "/" in name})

    def read(self, uri: str) -> bytes:
        self.requests.append("get")
        return self.objects[uri]

    def write(self, data: bytes, uri: str) -> None:
        self.requests.append("put")
        failed, stored = self.fails()
        if stored or not failed:
            with self._lock:
                assert self.objects.get(uri, data) == data, "an object never changes"
                self.objects[uri] = data
        if failed:
            raise StorageError("no answer")


def files_of(paths: RunPaths) -> dict[str, bytes]:
    """The files of a run's record."""
    found = {str(path.relative_to(paths.root)): path for path in paths.root.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if is_recorded(name, "/" not in name)}


def writer_of(paths: RunPaths, store: Memory | Store, place: str = PLACE) -> SegmentWriter:
    return SegmentWriter(paths, store, place, "engine", paths.root / "stored")


def copy_of(store: Memory | Store, uri: str, folder: Path) -> RecordCopy:
    return RecordCopy(store, open_copy(store, *find_record(store, uri), folder))


def grow(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def bundles_of(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "COUNT", count)
    monkeypatch.setattr(segment_reader, "COUNT", count)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = create_run("job", runs=tmp_path / "runs")
    paths.plan.write_text('{"groups": []}')
    return paths


@pytest.mark.promise("runs", "a record in a bucket is live, and whole in the end, whoever is killed")
@pytest.mark.parametrize(("seed", "bundled"), [(seed, seed % 2) for seed in range(8 if SOAK else 3)])
def test_a_copy_has_every_byte_whatever_is_killed_fails_or_arrives_late(
    run: RunPaths, tmp_path: Path, seed: int, bundled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bundled:  # else so few segments make no bundle
        bundles_of(3, monkeypatch)
    chance = random.Random(seed)
    store = Memory()
    store.fails = lambda: (chance.random() < 0.2, chance.random() < 0.5)
    writer = writer_of(run, store)
    paths = [run.events("engine"), run.events("algo-1"), run.engine / "supervisor.log"]
    paths += [run.log(Stream("group/ä", f"algo-{host}", name)) for host in (1, 2) for name in ("0", "agent")]
    paths += [run.metrics(Stream("group/ä", f"algo-{host}", "host")) for host in (1, 2)]
    copies: list[RecordCopy] = []
    late: list[tuple[str, bytes]] = []
    for _ in range(60):
        for path in chance.sample(paths, chance.randrange(len(paths))):
            grow(path, chance.randbytes(chance.randrange(300)) + chance.choice([b"\n", b"", b"\nhalf a line"]))
        if chance.random() < 0.3:  # killed: perhaps with a request on the way, perhaps without its state
            before = dict(store.objects)
            try:
                writer.store()
            except StorageError:
                pass
            for key in store.objects.keys() - before.keys():
                if chance.random() < 0.5 and len(store.objects) == len(before) + 1:
                    late.append((key, store.objects.pop(key)))
                    (run.root / "stored").unlink(missing_ok=True)
            if chance.random() < 0.3:
                (run.root / "stored").unlink(missing_ok=True)
            writer = writer_of(run, store)
        try:
            writer.store()
        except StorageError:
            continue
        if late and chance.random() < 0.5:
            store.objects.update([late.pop()])
        if not copies or chance.random() < 0.1:
            copies.append(copy_of(store, f"{PLACE}/{run.id}", tmp_path / f"copy-{len(copies)}"))
        for copy in copies if chance.random() < 0.5 else ():
            copied = copy.update()
            assert not copied.complete
            for name, data in files_of(copy.paths).items():
                assert (run.root / name).read_bytes().startswith(data), (seed, name)
    store.fails = lambda: (False, False)
    writer.store(last=True)
    for copy in copies:
        assert copy.update().complete, seed
        assert files_of(copy.paths) == files_of(run), seed
        assert copy.update().complete
        assert copy.bytes <= sum(map(len, files_of(run).values())), "nothing comes twice"


@pytest.mark.promise("runs", "a record costs at most one request an interval; a missing segment is named")
def test_an_interval_costs_one_request_however_many_files_there_are(run: RunPaths, tmp_path: Path) -> None:
    store = Memory()
    writer = writer_of(run, store)
    logs = [run.log(Stream("g", f"algo-{host}", "0")) for host in range(200)]
    copy = None
    for interval in range(5):
        for log in logs:
            grow(log, b"a line\n")
        store.requests.clear()
        assert writer.store() == 1
        assert store.requests == ["list", "put"] if interval == 0 else ["put"]
        assert writer.store() == 0, "without news there is no request"
        copy = copy or copy_of(store, f"{PLACE}/{run.id}", tmp_path / "copy")
        store.requests.clear()
        copy.update()
        assert store.requests == ["list", "list", "get"]
        assert files_of(copy.paths) == files_of(run)


def test_much_at_once_comes_in_bounded_segments_and_the_events_are_not_kept_waiting(run: RunPaths) -> None:
    store = Memory()
    for rank in range(12):
        grow(run.log(Stream("g", "algo-1", str(rank))), b"x" * 99 + b"\n" + b"long" * PIECE_BYTES)
    grow(run.events("engine"), b"{}\n")
    writer_of(run, store).store()
    assert max(map(len, store.objects.values())) < BATCH_BYTES + 10_000
    first = store.objects[min(store.objects)]
    assert '"events/engine.jsonl"' in first.partition(b"\n")[0].decode()
    assert len(store.objects) > 2


def test_the_end_of_the_run_is_the_last_that_a_copy_gets(run: RunPaths, tmp_path: Path) -> None:
    store = Memory()
    log = run.log(Stream("g", "algo-1", "0"))
    with EventWriter(run.events("engine")) as events, LogWriter(log) as lines:
        events.write(JobStarted(t=1.0))
        writer_of(run, store).store()
        for _ in range(20):
            lines.write_line("o", b"word " * 100_000)
        events.write(RunFinished(t=2.0, status=Status.COMPLETED))
    grow(log, b"torn")
    writer = writer_of(run, store)
    assert writer.store(last=True) > 1
    last = max(store.objects)
    held = store.objects.pop(last)
    copy = copy_of(store, f"{PLACE}/{run.id}", tmp_path / "copy")
    assert not copy.update().complete
    assert not Run(copy.paths).finished
    assert (copy.paths.root / log.relative_to(run.root)).stat().st_size > 9_000_000
    store.objects[last] = held
    assert copy.update().complete
    assert Run(copy.paths).status is Status.COMPLETED
    assert files_of(copy.paths) == files_of(run)


def four_segments(run: RunPaths, store: Memory) -> tuple[SegmentWriter, Path]:
    """Stores a log of four lines, a segment each. Returns the writer and the log."""
    writer = writer_of(run, store)
    log = run.log(Stream("g", "algo-1", "0"))
    for number in range(4):
        grow(log, f"line {number}\n".encode())
        writer.store()
    return writer, log


@pytest.mark.promise("runs", "a record costs at most one request an interval; a missing segment is named")
def test_a_missing_segment_is_named_and_what_is_before_it_is_copied(run: RunPaths, tmp_path: Path) -> None:
    store = Memory()
    _, log = four_segments(run, store)
    gone = sorted(store.objects)[2]
    held = store.objects.pop(gone)
    copy = copy_of(store, f"{PLACE}/{run.id}", tmp_path / "copy")
    with pytest.raises(RecordDamaged, match=r"engine/0000000003-.* is missing"):
        copy.update()
    mine = copy.paths.root / log.relative_to(run.root)
    assert mine.read_bytes() == b"line 0\nline 1\n"
    store.objects[gone] = held
    copy.update()
    assert mine.read_bytes() == log.read_bytes()


def test_a_copy_that_lost_bytes_heals_and_several_processes_may_keep_one(run: RunPaths, tmp_path: Path) -> None:
    store = Memory()
    writer, log = four_segments(run, store)
    copy = copy_of(store, f"{PLACE}/{run.id}", tmp_path / "copy")
    copy.update()
    mine = copy.paths.root / log.relative_to(run.root)
    mine.write_bytes(mine.read_bytes()[:10])
    grow(log, b"more\n")
    writer.store()
    beside = [threading.Thread(target=copy_of(store, f"{PLACE}/job", tmp_path / "copy").update) for _ in range(4)]
    for thread in beside:
        thread.start()
    for thread in beside:
        thread.join()
    assert mine.read_bytes() == log.read_bytes()
    writer.store(last=True)
    assert copy.update().complete
    for name in (mine, copy.paths.plan):
        name.unlink()
        assert copy.update().complete
    assert files_of(copy.paths) == files_of(run)


def test_of_a_run_with_a_record_for_each_attempt_the_latest_one_is_found(run: RunPaths) -> None:
    store = Memory()
    for attempt in (1, 2, 10):
        SegmentWriter(run, store, attempt_place(PLACE, attempt), "engine", run.root / f"stored-{attempt}").store()
    for named in ("job", run.id):
        assert find_record(store, f"{PLACE}/{named}") == (run.id, f"{PLACE}/attempts/10/{run.id}")
    second = f"{PLACE}/attempts/2/{run.id}"
    assert find_record(store, second) == (run.id, second)


def test_a_copy_needs_a_folder_that_is_free(run: RunPaths, tmp_path: Path) -> None:
    store = Memory()
    writer_of(run, store).store()
    where = find_record(store, f"{PLACE}/job")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "other" / run.id).mkdir(parents=True)
    (tmp_path / "other" / run.id / "run.json").write_text("{}")
    for folder, words in (("file", "is not a folder"), ("other", "is neither a copy nor a run")):
        with pytest.raises(UsageError, match=words):
            open_copy(store, *where, tmp_path / folder)
    with pytest.raises(UsageError, match="/proc cannot be written"):
        open_copy(store, *where, Path("/proc"))


def test_a_record_is_found_by_run_and_by_job_and_a_copy_is_told_from_the_record(run: RunPaths, tmp_path: Path) -> None:
    store = Memory()
    older = create_run("job", runs=tmp_path / "runs", created=1.0)
    for paths in (run, older):
        writer_of(paths, store).store()
    assert find_record(store, f"{PLACE}/job") == (run.id, f"{PLACE}/{run.id}")
    assert find_record(store, f"{PLACE}/{older.id}/") == (older.id, f"{PLACE}/{older.id}")
    with pytest.raises(RunNotFound, match="no record") as error:
        find_record(store, PLACE)
    assert error.value.hint.startswith(f"name one of the runs in {PLACE}: {run.id}, {older.id}")
    with pytest.raises(RunNotFound, match="nope: there is no record") as error:
        find_record(store, f"{PLACE}/nope")
    assert error.value.hint.startswith(f"name one of the runs in {PLACE}: {run.id}, {older.id}")
    with pytest.raises(UsageError, match="is the record itself"):
        open_copy(store, run.id, f"{PLACE}/{run.id}", tmp_path / "runs")
    assert read_copied(run) is None
    copy = open_copy(store, run.id, f"{PLACE}/{run.id}", tmp_path / "copy")
    with pytest.raises(UsageError, match="is a copy of"):
        open_copy(store, run.id, f"s3://other/{run.id}", tmp_path / "copy")
    assert read_copied(copy) is not None
    assert [path.name for path in (tmp_path / "copy").iterdir()] == [run.id], "nothing else is left there"


@pytest.mark.parametrize(
    "path", ["../../x", "logs/../../.ssh/a.log", "logs/a/b/c.sh", "events//x.jsonl", "hosts/x", "/etc/x", COPIED]
)
def test_a_reader_writes_no_file_that_no_record_has(run: RunPaths, tmp_path: Path, path: str) -> None:
    store = Memory()
    writer_of(run, store).store()
    copy = copy_of(store, f"{PLACE}/{run.id}", tmp_path / "copy")
    copy.update()
    before = sorted(tmp_path.rglob("*"))
    for offset in (0, None):
        header = SegmentHeader(1, run.id, "engine", 2, 0.0, (Piece(path, 1, offset),))
        store.objects[f"{PLACE}/{run.id}/segments/engine/{segment_name(2, 'x')}"] = encode(header, [b"x"])
        with pytest.raises(RecordDamaged, match="names a file that no record has"):
            copy.update()
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_no_segment_or_from_a_newer_version_is_named(run: RunPaths, tmp_path: Path) -> None:
    store = Memory()
    writer_of(run, store).store()
    copy = copy_of(store, f"{PLACE}/{run.id}", tmp_path / "copy")
    copy.update()
    newer = msgspec.structs.replace(SegmentHeader(1, run.id, "engine", 2, 0.0, ()), version=9)
    short = encode(SegmentHeader(1, run.id, "engine", 2, 0.0, (Piece("engine/x.log", 5, 0),)), [b"abc"])
    for data, words in ((b"hello", "no segment"), (encode(newer, []), "newer headrace"), (short, "holds 3 bytes")):
        store.objects[f"{PLACE}/{run.id}/segments/engine/{segment_name(2, 'x')}"] = data
        with pytest.raises(RecordDamaged, match=words):
            copy.update()


def test_in_a_bucket_and_in_a_folder_it_is_the_same(run: RunPaths, tmp_path: Path, s3: ObjectStore) -> None:
    with Store() as store:
        for place in (s3.uri("runs"), str(tmp_path / "place")):
            (run.root / "stored").unlink(missing_ok=True)
            writer = writer_of(run, store, place)
            for number in range(12):
                grow(run.log(Stream("g", "algo-1", "0")), f"line {number}\n".encode())
                writer.store()
            writer_of(run, store, place).store(last=True)
            copy = copy_of(store, f"{place}/job", tmp_path / f"copy-{len(place)}")
            assert copy.update().complete
            assert files_of(copy.paths) == files_of(run)
    assert s3.listed()[0].startswith(f"runs/{run.id}/segments/engine/0000000001-")


def test_the_clocks_of_a_copy_stand_at_its_newest_part_until_it_is_complete(run: RunPaths, tmp_path: Path) -> None:
    store = Memory()
    with EventWriter(run.events("engine")) as events:
        events.write(JobStarted(t=Run(run).header.created + 5))
    writer = writer_of(run, store)
    writer.store()
    copy = copy_of(store, f"{PLACE}/job", tmp_path / "copies")
    stored = copy.update().t
    copied = Run(copy.paths)
    line = run_line(copied, stored + 1000)
    assert line.seconds == pytest.approx(stored - line.created, abs=0.01)
    assert line.silent_seconds == pytest.approx(1000)
    notes = cost_report(copied).notes
    assert any(note.startswith("a copy, with nothing new for ") for note in notes)
    assert (Run(run).known_until, run_line(Run(run), stored + 1000).silent_seconds) == (None, None)
    with EventWriter(run.events("engine")) as events:
        events.write(RunFinished(t=stored, status=Status.COMPLETED))
    writer.store(last=True)
    assert copy.update().complete
    assert copied.known_until is None
