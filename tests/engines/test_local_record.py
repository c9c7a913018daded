"""Real jobs whose record is stored in a bucket while they run: whatever is killed and however the bucket behaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from stage import Stage, kill, said

from flaky_s3 import FlakyS3, flaky
from headrace.errors import StorageError
from headrace.instance.storage import Store
from headrace.runs import Run, RunPaths, Status
from headrace.runs.segment_reader import RecordCopy, open_copy
from headrace.runs.segments import find_record, is_recorded
from objectstore import ObjectStore
from patience import until

WORKING = """
    import pathlib, time
    number = 0
    while not pathlib.Path("{stop}").exists():
        number += 1
        print("line", number, "x" * (number % 50), flush=True)
        time.sleep(0.01)
    print("the end", flush=True)
"""


@pytest.fixture
def proxy(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyS3]:
    with flaky(s3.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        yield proxy


def files_of(paths: RunPaths) -> dict[str, bytes]:
    """The files of a run's record that hold something."""
    found = {str(path.relative_to(paths.root)): path for path in paths.root.rglob("*") if path.is_file()}
    wanted = {name: path.read_bytes() for name, path in found.items() if is_recorded(name, "/" not in name)}
    return {name: data for name, data in wanted.items() if data}


def copy_of(store: Store, uri: str, folder: Path) -> RecordCopy:
    return RecordCopy(store, open_copy(store, *find_record(store, uri), folder))


def storing(handle: object) -> list[int]:
    """The processes that store the record of a run."""
    module, root = "headrace.hosting.helpers.store_record", str(handle.paths.root)
    return [
        each.pid
        for each in psutil.process_iter(["cmdline"])
        if (line := each.info["cmdline"] or []) and module in line and root in line
    ]


@pytest.mark.promise("engines", "the record in a bucket, on local")
@pytest.mark.promise("runs", "a record in a bucket is live, and whole in the end, whoever is killed")
def test_the_record_is_live_and_in_the_end_whole_though_its_process_is_killed_and_the_bucket_fails(
    stage: Stage, s3: ObjectStore, proxy: FlakyS3, tmp_path: Path
) -> None:
    proxy.errors, proxy.delay = 0.3, 0.3
    script = WORKING.format(stop=tmp_path / "stop")
    began = time.monotonic()
    handle = stage.start(script, instance_count=2, record={"uri": s3.uri("runs"), "interval": 1})
    over = threading.Event()
    copies: list[RecordCopy] = []

    def follow(number: int, store: Store) -> None:
        while not over.is_set():
            try:
                if number >= len(copies):
                    copies.append(copy_of(store, s3.uri(f"runs/{handle.id}"), tmp_path / f"copy-{number}"))
                else:
                    copies[number].update()
            except (StorageError, LookupError):
                pass
            time.sleep(0.2)

    with Store() as store:
        until(s3.listed, 30, "the first segment")
        readers = [threading.Thread(target=follow, args=(0, store))]
        for reader in readers:
            reader.start()
        try:
            kills = 4
            for _ in range(kills):
                (pid,) = until(lambda: storing(handle), 20, "the process that stores the record")
                time.sleep(proxy.chance.random())
                kill(pid)
                until(lambda gone=pid: gone not in storing(handle))
            until(lambda: copies and "algo-2" in str(Run(copies[0].paths).streams()), 30, "a live copy")
            live = Run(copies[0].paths)
            assert live.status is Status.IN_PROGRESS
            assert any(line.text.startswith("line") for line in live.logs())
            until(lambda: storing(handle), 20)
        finally:
            (tmp_path / "stop").touch()
            over.set()
            for reader in readers:
                reader.join()
        proxy.errors, proxy.delay = 0.0, 0.0
        assert handle.wait(60) is Status.COMPLETED, handle.cause
        seconds = time.monotonic() - began
        assert handle.run.state().record_not_stored is None
        assert proxy.requests["PUT"] <= seconds + 2 * kills + 5, "at most one request an interval and process"
        copies.append(copy_of(store, s3.uri("runs/job"), tmp_path / "later"))
        for copy in copies:
            assert copy.update().complete
            assert files_of(copy.paths) == files_of(handle.paths)
            assert Run(copy.paths).status is Status.COMPLETED
    stage.assert_nothing_left(handle)


@pytest.mark.promise("runs", "a record in a bucket is live, and whole in the end, whoever is killed")
def test_a_killed_supervisor_is_in_the_stored_record_too(stage: Stage, s3: ObjectStore, tmp_path: Path) -> None:
    script = WORKING.format(stop=tmp_path / "stop")
    handle = stage.start(script, record={"uri": s3.uri("runs"), "interval": 1})
    until(said(handle, "line 100"), 30)
    kill(handle.run.header.supervisor_pid)
    assert handle.wait(60) is Status.FAILED
    with Store() as store:
        copy = copy_of(store, s3.uri(f"runs/{handle.id}"), tmp_path / "copy")
        assert copy.update().complete
    assert str(Run(copy.paths).cause) == "the engine's supervisor was killed by SIGKILL"
    assert files_of(copy.paths) == files_of(handle.paths)
    stage.assert_nothing_left(handle)


@pytest.mark.promise("runs", "a bucket that fails changes nothing for the job, and is told")
def test_a_bucket_that_is_gone_changes_nothing_for_the_job_and_the_end_is_tried_until_it_is_back(
    stage: Stage, s3: ObjectStore, proxy: FlakyS3, tmp_path: Path
) -> None:
    handle = stage.start(WORKING.format(stop=tmp_path / "stop"), record={"uri": s3.uri("runs"), "interval": 1})
    until(s3.listed, 30)
    proxy.down = True
    log = handle.paths.engine / "store_record.log"
    until(lambda: log.exists() and log.read_text(), 30, "a warning")
    (tmp_path / "stop").touch()
    until(lambda: handle.run.finished, 30)
    tried = proxy.requests.total()
    until(lambda: proxy.requests.total() >= tried + 4, 40, "more tries than three")
    assert handle.run.supervised
    proxy.down = False
    assert handle.wait(60) is Status.COMPLETED
    assert handle.exit_code == 0
    assert handle.run.state().record_not_stored is None
    assert log.read_text().count("warning:") == 1, "it is told once"
    with Store() as store:
        assert copy_of(store, s3.uri("runs/job"), tmp_path / "copy").update().complete
    stage.assert_nothing_left(handle)
