"""Checkpoints and intermediate output are safe within seconds, whole, and there again for the next job."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from artefact_runs import HandMade
from effort import SOAK

from headrace.child_python import ChildReport, read_report
from headrace.hosting.helpers.sync import read_known
from headrace.runs import Clash
from headrace.runs.events import CheckpointsRestored
from headrace.runs.reader import Run
from objectstore import ObjectStore, free_port
from patience import allowed, until

SECONDS = 10.0


class Place:
    """A place for checkpoints, looked at behind headrace's back."""

    def __init__(self, uri: str, files: Callable[[], dict[str, bytes]], put: Callable[[str, bytes], object]) -> None:
        self.uri = uri
        self.files = files
        self.put = put

    def has(self, **files: bytes) -> Callable[[], bool]:
        return lambda: {name: self.files().get(name) for name in files} == files


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, s3: ObjectStore) -> Place:
    if request.param == "bucket":

        def listed() -> dict[str, bytes]:
            return {key.removeprefix("kept/"): s3.get(key) for key in s3.listed()}

        return Place(s3.uri("kept"), listed, lambda name, data: s3.put(f"kept/{name}", data))
    root = tmp_path / "kept"

    def found() -> dict[str, bytes]:
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def put(name: str, data: bytes) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)

    return Place(str(root), found, put)


# Decorates a test of what is the same wherever the files go: in a bucket in the long run only.
anywhere = pytest.mark.parametrize("place", ["folder", *(["bucket"] if SOAK else [])], indirect=True)


@contextmanager
def syncing(run: HandMade, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = run.start("sync", **environment)
    try:
        assert read_report(process.stdout.readline()) == ChildReport(ready=True)
        yield process
    finally:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    return process.returncode, said


@anywhere
def test_new_and_changed_files_go_up_while_the_job_runs_and_none_is_removed(tmp_path: Path, place: Place) -> None:
    run = HandMade.make(tmp_path / "run", hosts=2, checkpoints=place.uri)
    with syncing(run) as process:
        run.fill(1, {"checkpoints/step-1/model.pt": b"1", "checkpoints/one": b"1"})
        run.fill(2, {"checkpoints/two": b"2"})
        first = {"step-1/model.pt": b"1", "one": b"1", "two": b"2"}
        until(lambda: place.files() == first, SECONDS, "the files")
        (run.base() / "checkpoints/one").unlink()
        (run.base() / "checkpoints/step-1/model.pt").write_bytes(b"later")
        (run.base() / "checkpoints/new").write_bytes(b"made aside")
        (run.base() / "checkpoints/new").rename(run.base() / "checkpoints/renamed")
        until(place.has(**{"step-1/model.pt": b"later", "renamed": b"made aside"}), SECONDS, "the changes")
        assert place.files()["one"] == b"1"
        assert end(process) == (0, "")
    kept = run.artefacts()["checkpoints"]
    assert (kept.uri, kept.clashes) == (place.uri, ())


@anywhere
def test_a_file_that_is_being_written_is_not_taken(tmp_path: Path, place: Place) -> None:
    run = HandMade.make(tmp_path / "run", checkpoints=place.uri)
    with syncing(run) as process, (run.base() / "checkpoints/slow").open("wb") as file:
        file.write(b"half")
        file.flush()
        os.utime(file.fileno(), (1, 1))  # it looks as if nobody had touched it for long
        run.fill(1, {"checkpoints/mark": b"m"})
        until(place.has(mark=b"m"), SECONDS, "the mark")
        (run.base() / "checkpoints/mark").write_bytes(b"again")
        until(place.has(mark=b"again"), SECONDS, "a later look")
        assert "slow" not in place.files()
        file.write(b", whole")
        file.close()
        until(place.has(slow=b"half, whole"), SECONDS, "the whole file")
        assert end(process)[0] == 0


@pytest.mark.promise("artefacts", "checkpoints go up while the job runs, never torn, and are there again")
@pytest.mark.parametrize("place", ["bucket", *(["folder"] if SOAK else [])], indirect=True)
def test_what_is_rewritten_in_place_all_the_time_is_never_torn(tmp_path: Path, place: Place) -> None:
    run = HandMade.make(tmp_path / "run", checkpoints=place.uri)
    path, over, torn = run.base() / "checkpoints/state", threading.Event(), []
    whole = {bytes([letter]) * (3 << 20) for letter in b"abc"}

    def write() -> None:
        while not over.is_set():
            for data in whole:
                path.write_bytes(data)
                over.wait(0.15)

    with syncing(run) as process:
        writer = threading.Thread(target=write)
        writer.start()
        try:
            deadline = time.monotonic() + 4
            while time.monotonic() < deadline:
                torn += [len(data) for data in place.files().values() if data not in whole]
                over.wait(0.05)
        finally:
            over.set()
            writer.join()
        assert torn == []
        assert end(process)[0] == 0
    assert place.files() == {"state": path.read_bytes()}


@anywhere
def test_the_end_takes_what_was_written_last(tmp_path: Path, place: Place) -> None:
    run = HandMade.make(tmp_path / "run", checkpoints=place.uri)
    with syncing(run) as process:
        run.fill(1, {f"checkpoints/{number}": b"x" for number in range(50)})
        assert end(process) == (0, "")
    assert len(place.files()) == 50
    kept = run.artefacts()["checkpoints"]
    assert (kept.files, kept.bytes) == (50, 50)


@pytest.mark.promise("artefacts", "checkpoints go up while the job runs, never torn, and are there again")
def test_checkpoints_are_there_again_on_every_host(tmp_path: Path, place: Place) -> None:
    place.put("deep/er/model.pt", b"m" * 10_000)
    place.put("step", b"7")
    run = HandMade.make(tmp_path / "run", hosts=3, checkpoints=place.uri)
    assert run.run("restore") == (0, "")
    for number in (1, 2, 3):
        assert (run.base(number) / "checkpoints/deep/er/model.pt").read_bytes() == b"m" * 10_000
        assert (run.base(number) / "checkpoints/step").read_bytes() == b"7"
    (restored,) = [event for event in Run(run.paths).events() if isinstance(event, CheckpointsRestored)]
    assert (restored.uri, restored.files, restored.bytes) == (place.uri, 2, 10_001)
    before = place.files()
    with syncing(run) as process:
        run.fill(2, {"checkpoints/step": b"8"})
        until(place.has(step=b"8"), SECONDS, "the new step")
        assert end(process)[0] == 0
    assert place.files() == {**before, "step": b"8"}
    assert run.artefacts()["checkpoints"].files == 1  # what was brought down was not brought up again


@anywhere
def test_the_next_attempt_knows_what_is_at_the_place(tmp_path: Path, place: Place) -> None:
    run = HandMade.make(tmp_path / "run", checkpoints=place.uri)
    run.fill(1, {"checkpoints/a": b"a", "checkpoints/b": b"b"})
    for _ in range(2):
        with syncing(run) as process:
            assert end(process)[0] == 0
    assert set(read_known(run.paths)[str(run.base() / "checkpoints")]) == {"a", "b"}
    assert run.artefacts()["checkpoints"].files == 2  # said by the first; the second had nothing to do


@pytest.mark.promise("runs", "`retry` starts again what infrastructure failed, never what was stopped")
@anywhere
def test_another_attempt_gets_what_all_hosts_saved_and_keeps_what_it_wrote_last(tmp_path: Path, place: Place) -> None:
    place.put("earlier", b"of another job")
    run = HandMade.make(tmp_path / "run", hosts=3, checkpoints=place.uri)
    assert run.run("restore") == (0, "")
    with syncing(run) as process:
        run.fill(1, {"checkpoints/one": b"1", "checkpoints/deep/both": b"of algo-1, earlier"})
        os.utime(run.base(1) / "checkpoints/deep/both", (1, 1))
        until(place.has(one=b"1"), SECONDS, "the first file")
        run.fill(2, {"checkpoints/two": b"2", "checkpoints/deep/both": b"of algo-2, last"})
        assert end(process)[0] == 0
    run.fill(3, {"checkpoints/one": b"newer, and nobody could store it"})
    untouched = (run.base(2) / "checkpoints/two").stat()
    assert run.run("restore") == (0, "")
    everywhere = {"earlier": b"of another job", "two": b"2", "deep/both": b"of algo-2, last"}
    for number in (1, 2, 3):
        for name, data in everywhere.items():
            assert (run.base(number) / "checkpoints" / name).read_bytes() == data, (number, name)
    ones = [(run.base(number) / "checkpoints/one").read_bytes() for number in (1, 2, 3)]
    assert ones == [b"1", b"1", b"newer, and nobody could store it"]
    assert (run.base(2) / "checkpoints/two").stat() == untouched
    with syncing(run) as process:
        run.fill(1, {"checkpoints/later": b"!"})
        assert end(process)[0] == 0
    assert place.files()["one"] == b"newer, and nobody could store it"
    kept = run.artefacts()["checkpoints"]
    assert (kept.files, kept.bytes) == (4, 1 + len("of algo-2, last") + 1 + len(ones[2])), "of both attempts"
    assert [clash.path for clash in kept.clashes] == ["deep/both"], "an attempt writes over what an earlier one left"


@pytest.mark.promise("own-engine", "a machine with some hosts of a job fetches, serves and stores for these alone")
@anywhere
def test_with_hosts_on_other_machines_another_attempt_gets_what_those_saved(tmp_path: Path, place: Place) -> None:
    both = HandMade.make(tmp_path / "run", hosts=2, checkpoints=place.uri)
    run = both.with_host(2)
    with syncing(run) as process:
        both.fill(1, {"checkpoints/of-algo-1": b"not of this machine"})
        run.fill(2, {"checkpoints/model": b"of algo-2", "checkpoints/own": b"2"})
        until(place.has(model=b"of algo-2", own=b"2"), SECONDS, "those of algo-2")
        assert end(process)[0] == 0
    assert set(place.files()) == {"model", "own"}
    place.put("model", b"of algo-1, later")
    run.fill(2, {"checkpoints/own": b"newer, and nobody could store it"})
    assert run.run("restore") == (0, "")
    assert (run.base(2) / "checkpoints/model").read_bytes() == b"of algo-1, later"
    assert (run.base(2) / "checkpoints/own").read_bytes() == b"newer, and nobody could store it"
    assert sorted(path.name for path in (run.base(1) / "checkpoints").iterdir()) == ["of-algo-1"]


@anywhere
def test_no_checkpoints_yet_is_no_error(tmp_path: Path, place: Place) -> None:
    run = HandMade.make(tmp_path / "run", checkpoints=place.uri)
    assert run.run("restore") == (0, "")


@anywhere
def test_the_last_writer_wins_and_the_clash_is_reported(tmp_path: Path, place: Place) -> None:
    run = HandMade.make(tmp_path / "run", hosts=3, checkpoints=place.uri)
    with syncing(run) as process:
        for number, data in [(3, b"3"), (1, b"1")]:
            run.fill(number, {"checkpoints/model": data, "checkpoints/same": b"same"})
            until(place.has(model=data), SECONDS, f"that of algo-{number}")
        run.fill(2, {"checkpoints/model": b"2"})
        os.utime(run.base(2) / "checkpoints/model", (1, 1))
        until(place.has(model=b"2"), SECONDS, "that of algo-2")
        assert end(process)[0] == 0
    kept = run.artefacts()["checkpoints"]
    assert kept.clashes == (Clash("model", "algo-2", ("algo-3", "algo-1")),)


@anywhere
def test_intermediate_output_is_brought_up_when_it_is_closed(tmp_path: Path, place: Place) -> None:
    run = HandMade.make(tmp_path / "run", hosts=2, output=place.uri, remote=True)
    with syncing(run) as process:
        run.fill(1, {"output/intermediate/loss.png": b"1"})
        run.fill(2, {"output/intermediate/deep/two": b"2"})
        until(lambda: len(place.files()) == 2, SECONDS, "both")
        assert end(process)[0] == 0
    assert place.files() == {"intermediate/loss.png": b"1", "intermediate/deep/two": b"2"}
    assert run.artefacts()["intermediate"].uri == f"{place.uri}/intermediate"


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_server_that_comes_back_gets_all(tmp_path: Path, s3: ObjectStore) -> None:
    """First nobody listens at the endpoint, then a server does: the test's own, reached through a link in a file."""
    port = free_port()
    run = HandMade.make(tmp_path / "run", checkpoints=s3.uri("kept"))
    environment = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_MAX_ATTEMPTS": "1"}
    with syncing(run, **environment) as process:
        run.fill(1, {"checkpoints/a": b"a"})
        assert "warning: " in process.stderr.readline()
        forward = subprocess.Popen(
            ["python3", str(Path(__file__).parent / "forward.py"), str(port), s3.endpoint.rpartition(":")[2]]
        )
        try:
            until(lambda: s3.listed() == ["kept/a"], 20, "the file")
            assert end(process)[0] == 0
        finally:
            forward.kill()
            forward.wait()


def test_a_place_that_stays_away_is_an_error_at_the_end(tmp_path: Path, s3: ObjectStore) -> None:
    run = HandMade.make(tmp_path / "run", checkpoints=s3.uri("kept"))
    environment = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}", "AWS_MAX_ATTEMPTS": "1"}
    with syncing(run, **environment) as process:
        run.fill(1, {"checkpoints/a": b"a"})
        began = time.monotonic()
        code, said = end(process)
        assert time.monotonic() - began < allowed(10)
    assert code == 1
    assert said.splitlines()[-1].startswith(
        "error: ClientError: Checkpoint or intermediate output upload failed: s3://"
    )
    assert "AWS_ENDPOINT_URL" in said.splitlines()[-1]


def test_checkpoints_that_cannot_be_had_are_an_error(tmp_path: Path, s3: ObjectStore) -> None:
    run = HandMade.make(tmp_path / "run", checkpoints="s3://no-such-bucket-at-all/kept")
    code, said = run.run("restore")
    assert code == 1
    assert said.startswith(
        "error: ClientError: Checkpoint download failed: s3://no-such-bucket-at-all/kept/: there is no"
    )
    s3.put("evil/../../../x", b"x")
    run = HandMade.make(tmp_path / "other", checkpoints=s3.uri("evil"))
    code, said = run.run("restore")
    assert code == 1
    assert "cannot be the name of a file" in said


@anywhere
def test_a_killed_sync_leaves_nothing_but_whole_files(tmp_path: Path, place: Place) -> None:
    run = HandMade.make(tmp_path / "run", checkpoints=place.uri)
    data = os.urandom(4 << 20)
    with syncing(run) as process:
        run.fill(1, {f"checkpoints/{number:02d}": data for number in range(20)})
        until(place.files, SECONDS, "the first file")
        process.kill()
        process.wait()
    assert set(place.files().values()) == {data}
    assert set(place.files()) <= {f"{number:02d}" for number in range(20)}
    assert sorted(path.name for path in (run.paths.root / "engine").iterdir()) == ["sync.json"]


@anywhere
def test_a_damaged_memory_of_what_is_kept_is_no_error(tmp_path: Path, place: Place) -> None:
    run = HandMade.make(tmp_path / "run", checkpoints=place.uri)
    run.fill(1, {"checkpoints/a": b"a"})
    (run.paths.root / "engine/kept.json").write_bytes(msgspec.json.encode([1]))
    with syncing(run) as process:
        assert end(process)[0] == 0
    assert place.files() == {"a": b"a"}


@pytest.mark.promise("artefacts", "what leaves a host is read as the host sees it; what cannot be stored fails the job")
@pytest.mark.parametrize("bad", ["loop", "step-1/x", "/opt/ml/nothing", "/etc/hostname"])
def test_a_link_that_cannot_be_followed_costs_no_other_checkpoint_and_fails_the_job(tmp_path: Path, bad: str) -> None:
    run = HandMade.make(tmp_path / "run", checkpoints=str(tmp_path / "kept"))
    run.fill(1, {"checkpoints/step-1": b"1", "checkpoints/z/deep": b"2", "model/w": b"w"})
    (run.base() / "checkpoints/loop").symlink_to(bad)
    (run.base() / "checkpoints/link").symlink_to("/opt/ml/model/w")
    with syncing(run) as process:
        code, said = end(process)
    assert code == 1
    assert f"algo-1: {run.base()}/checkpoints/loop cannot be stored: " in said.splitlines()[-1]
    kept = {path.name: path.read_bytes() for path in (tmp_path / "kept").rglob("*") if path.is_file()}
    assert kept == {"step-1": b"1", "deep": b"2", "link": b"w"}
    assert run.artefacts()["checkpoints"].files == 3


def test_what_holds_no_data_is_left_out_of_the_checkpoints_and_reported(tmp_path: Path) -> None:
    run = HandMade.make(tmp_path / "run", checkpoints=str(tmp_path / "kept"))
    run.fill(1, {"checkpoints/step-1": b"1"})
    (run.base() / "checkpoints/latest").symlink_to("step-0")
    os.mkfifo(run.base() / "checkpoints/pipe")
    with syncing(run) as process:
        assert end(process) == (0, "")
    assert run.artefacts()["checkpoints"].left_out == ("algo-1:latest", "algo-1:pipe")


def test_checkpoints_are_brought_to_no_folder_of_the_machine_that_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "kept/deep").mkdir(parents=True)
    (tmp_path / "kept/deep/w").write_bytes(b"w")
    run = HandMade.make(tmp_path / "run", checkpoints=str(tmp_path / "kept"))
    (tmp_path / "machine").mkdir()
    (run.base() / "checkpoints/deep").symlink_to(tmp_path / "machine")
    assert run.run("restore") == (0, "")
    assert list((tmp_path / "machine").iterdir()) == []
    assert (run.base() / "checkpoints/deep/w").read_bytes() == b"w"


@pytest.mark.promise("artefacts", "a place of output holds the files of one run")
def test_intermediate_files_of_an_earlier_run_of_the_name_go_once_and_nothing_is_removed_through_links(
    tmp_path: Path,
) -> None:
    place, elsewhere = tmp_path / "out/intermediate", tmp_path / "elsewhere"
    (place / "deep").mkdir(parents=True)
    (place / "deep/old").touch()
    elsewhere.mkdir()
    (elsewhere / "mine").touch()
    (place / "link").symlink_to(elsewhere)
    run = HandMade.make(tmp_path / "run", output=str(tmp_path / "out"), remote=True)
    for name in ("first", "second"):
        with syncing(run) as process:
            run.fill(1, {f"output/intermediate/{name}": b"x"})
            assert end(process) == (0, "")
    assert sorted(path.name for path in place.rglob("*")) == ["first", "second"]
    assert [path.name for path in elsewhere.iterdir()] == ["mine"]
