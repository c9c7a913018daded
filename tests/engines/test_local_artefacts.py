"""After the job: model and output of all hosts in one archive each, at the place that the job names, or an error."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from artefact_runs import HandMade
from effort import SOAK

from headrace.errors import StorageError
from headrace.hosting.helpers.artefacts import has_artefacts, holds_earlier, merge
from headrace.hosting.helpers.collect import write_archive
from headrace.hosting.helpers.sync import remove_earlier
from headrace.instance.storage import Store
from headrace.runs import Clash, EventWriter
from headrace.runs.events import AttemptStarted
from needs import require
from objectstore import ObjectStore, free_port
from patience import allowed, until


def members(archive: Path) -> dict[str, bytes | str]:
    """Content of an archive: files as bytes, links as their target, folders as ``/``."""
    found: dict[str, bytes | str] = {}
    with tarfile.open(archive) as file:
        for member in file:
            content = file.extractfile(member) if member.isfile() else None
            found[member.name] = content.read() if content else member.linkname if member.issym() else "/"
            assert (member.uname, member.gname, member.uid, member.gid) == ("", "", 0, 0)
    return found


def test_model_and_output_of_all_hosts_become_one_archive_each(tmp_path: Path) -> None:
    run = HandMade.make(tmp_path / "run", hosts=2)
    assert not has_artefacts(run.paths)
    run.fill(1, {"model/weights.pt": b"w" * 1000, "model/same": b"same", "output/data/eval/1.json": b"1"})
    run.fill(2, {"model/vocab.txt": b"v", "model/same": b"same", "output/data/eval/2.json": b"2"})
    (run.base(1) / "model/weights.pt").chmod(0o640)
    (run.base(2) / "model/assets").mkdir()
    assert has_artefacts(run.paths)
    assert run.collect() == (0, "")
    assert members(run.paths.output / "model.tar.gz") == {
        "assets": "/",
        "same": b"same",
        "vocab.txt": b"v",
        "weights.pt": b"w" * 1000,
    }
    assert members(run.paths.output / "output.tar.gz") == {"eval": "/", "eval/1.json": b"1", "eval/2.json": b"2"}
    with tarfile.open(run.paths.output / "model.tar.gz") as archive:
        assert archive.getmember("weights.pt").mode == 0o640
    model = run.artefacts()["model"]
    assert (model.uri, model.files, model.bytes) == (str(run.paths.output / "model.tar.gz"), 3, 1005)
    assert model.stored == (run.paths.output / "model.tar.gz").stat().st_size
    assert (model.clashes, model.left_out) == ((), ())


@pytest.mark.promise("own-engine", "a machine with some hosts of a job fetches, serves and stores for these alone")
def test_machines_that_have_some_hosts_each_store_parts_of_their_own(tmp_path: Path) -> None:
    both = HandMade.make(tmp_path / "run", hosts=2)
    for number in (1, 2):
        both.fill(number, {"model/same name": str(number).encode()})
    for number in (1, 2):
        assert both.with_host(number).collect() == (0, "")
        part = both.paths.output / f"parts/algo-{number}"
        assert members(part / "model.tar.gz") == {"same name": str(number).encode()}
        assert both.artefacts()["model"].uri == str(part / "model.tar.gz")


def test_of_several_machines_the_leaders_takes_an_earlier_runs_intermediate_files_away_once(tmp_path: Path) -> None:
    both = HandMade.make(tmp_path / "run", hosts=2, output=str(tmp_path / "output"), remote=True)
    both.paths.plan.write_text('{"leader": "algo-2"}')
    cleared = both.paths.engine / "intermediate-cleared"
    place = tmp_path / "output" / "intermediate"
    place.mkdir(parents=True)

    def left_by(number: int) -> list[str]:
        (place / "old.png").touch()
        with Store() as store:
            remove_earlier(both.paths, both.with_host(number).plan, store)
        return sorted(path.name for path in place.glob("*"))

    assert left_by(1) == ["old.png"]
    assert left_by(2) == []
    assert left_by(2) == ["old.png"]  # it is this run's now
    cleared.unlink()  # as on the machine that has taken the leader's place
    with EventWriter(both.paths.events("engine")) as events:
        events.write(AttemptStarted(t=1.0, number=2))
    assert left_by(2) == ["old.png"]


def test_a_clash_keeps_the_first_hosts_file_and_is_reported(tmp_path: Path) -> None:
    run = HandMade.make(tmp_path / "run", hosts=3)
    run.fill(1, {"model/a": b"1", "model/folder/x": b"x", "model/file": b"f"})
    run.fill(2, {"model/a": b"2", "model/folder": b"not a folder", "model/file/y": b"y"})
    run.fill(3, {"model/a": b"1", "model/folder/x": b"X", "model/file/z/y": b"y"})
    assert run.collect()[0] == 0
    assert members(run.paths.output / "model.tar.gz") == {"a": b"1", "file": b"f", "folder": "/", "folder/x": b"x"}
    model = run.artefacts()["model"]
    assert model.clashes == (
        Clash("a", "algo-1", ("algo-2",)),
        Clash("file", "algo-1", ("algo-2", "algo-3")),
        Clash("folder", "algo-1", ("algo-2",)),
        Clash("folder/x", "algo-1", ("algo-3",)),
    )
    assert model.clash_count == 4


@pytest.mark.parametrize(
    ("status", "stored"), [("Completed", {"model", "output"}), ("Stopped", {"model", "output"}), ("Failed", {"output"})]
)
def test_a_job_that_failed_stores_its_output_but_no_model(tmp_path: Path, status: str, stored: set[str]) -> None:
    run = HandMade.make(tmp_path / "run")
    run.fill(1, {"model/x": b"x", "output/data/y": b"y"})
    assert run.collect(status)[0] == 0
    assert set(run.artefacts()) == stored


def test_without_files_there_is_no_archive(tmp_path: Path) -> None:
    run = HandMade.make(tmp_path / "run")
    assert run.collect() == (0, "")
    assert not run.paths.output.exists()
    assert run.artefacts() == {}


def test_links_stay_inside_or_become_what_they_lead_to(tmp_path: Path) -> None:
    run = HandMade.make(tmp_path / "run")
    run.fill(1, {"model/a/real": b"r", "checkpoints/best": b"best", "checkpoints/deep/x": b"x"})
    model = run.base() / "model"
    (model / "latest").symlink_to("a/real")
    (model / "a/up").symlink_to("../a")
    (model / "best").symlink_to("/opt/ml/checkpoints/best")
    (model / "deep").symlink_to("../checkpoints/deep")
    (model / "nowhere").symlink_to("nothing")
    (model / "loop").symlink_to("/opt/ml/model")
    os.mkfifo(model / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        here = Path.cwd()
        os.chdir(model)  # a socket's path must be short
        listener.bind("socket")
        os.chdir(here)
    assert run.collect()[0] == 0
    assert members(run.paths.output / "model.tar.gz") == {
        "a": "/",
        "a/real": b"r",
        "a/up": "../a",
        "best": b"best",
        "deep": "/",
        "deep/x": b"x",
        "latest": "a/real",
        "nowhere": "nothing",
    }
    assert sorted(run.artefacts()["model"].left_out) == [f"algo-1:{name}" for name in ("fifo", "loop", "socket")]


@pytest.mark.promise("artefacts", "what leaves a host is read as the host sees it; what cannot be stored fails the job")
@pytest.mark.parametrize("compress", [True, False])
def test_what_cannot_be_stored_fails_the_job_with_its_path_and_the_rest_is_stored(
    tmp_path: Path, compress: bool
) -> None:
    run = HandMade.make(tmp_path / "run", hosts=2, compress=compress)
    secret = tmp_path / "of this machine"
    secret.write_text("not the job's")
    run.fill(1, {"model/w": b"w", "output/data/y": b"y"})
    run.fill(2, {"model/z": b"z"})
    (run.base(2) / "model/bad").symlink_to(secret)
    assert has_artefacts(run.paths)
    code, said = run.collect()
    assert code == 1
    assert f"algo-2: {run.base(2)}/model/bad cannot be stored: it leads to {secret}" in failed(said)
    assert set(run.artefacts()) == {"model", "output"}
    if compress:
        assert members(run.paths.output / "model.tar.gz") == {"w": b"w", "z": b"z"}
    else:
        assert rest_of(run.paths.output / "model") == ["w", "z"]


def test_a_file_in_the_place_of_the_model_is_no_empty_model(tmp_path: Path) -> None:
    run = HandMade.make(tmp_path / "run")
    (run.base() / "model").rmdir()
    (run.base() / "model").write_text("weights")
    assert has_artefacts(run.paths)
    code, said = run.collect()
    assert code == 1
    assert f"{run.base()}/model cannot be stored: it is no folder" in failed(said)


def test_names_that_are_no_text_and_sparse_files_are_stored(tmp_path: Path) -> None:
    run = HandMade.make(tmp_path / "run", hosts=2)
    name = os.fsdecode(b"model/caf\xe9")
    run.fill(1, {name: b"1", "model/" + "long" * 60: b"l"})
    run.fill(2, {name: b"2"})
    with (run.base() / "model/sparse").open("wb") as file:
        file.truncate(100 << 20)
    assert run.collect()[0] == 0
    with tarfile.open(run.paths.output / "model.tar.gz") as archive:
        assert archive.getmember("sparse").size == 100 << 20
        assert os.fsdecode(b"caf\xe9") in archive.getnames()
    assert (run.paths.output / "model.tar.gz").stat().st_size < 2 << 20
    assert run.artefacts()["model"].clashes[0].path == "caf\\udce9"


def test_in_a_bucket(tmp_path: Path, s3: ObjectStore) -> None:
    run = HandMade.make(tmp_path / "run", hosts=2, output=s3.uri("jobs/job/output"), remote=True)
    run.fill(1, {"model/x": b"x", "output/data/y": b"y"})
    assert run.collect() == (0, "")
    assert s3.listed() == ["jobs/job/output/model.tar.gz", "jobs/job/output/output.tar.gz"]
    (tmp_path / "model.tar.gz").write_bytes(s3.get("jobs/job/output/model.tar.gz"))
    assert members(tmp_path / "model.tar.gz") == {"x": b"x"}
    assert run.artefacts()["model"].uri == s3.uri("jobs/job/output/model.tar.gz")
    assert run.artefacts()["model"].stored == (tmp_path / "model.tar.gz").stat().st_size


def test_without_compression_there_are_folders(tmp_path: Path, s3: ObjectStore) -> None:
    run = HandMade.make(tmp_path / "run", output=s3.uri("o"), remote=True, compress=False)
    run.fill(1, {"model/a/x": b"x", "output/data/y": b"y"})
    (run.base() / "model/latest").symlink_to("a/x")
    assert run.collect() == (0, "")
    assert s3.listed() == ["o/data/y", "o/model/a/x", "o/model/latest"]
    assert s3.get("o/model/latest") == b"x"


def test_intermediate_files_of_a_job_without_a_place_are_with_its_other_output(tmp_path: Path) -> None:
    run = HandMade.make(tmp_path / "run")
    run.fill(1, {"output/intermediate/plots/1.png": b"p"})
    assert run.collect("Failed") == (0, "")
    assert (run.paths.output / "intermediate/plots/1.png").read_bytes() == b"p"


@pytest.mark.promise("artefacts", "a place of output holds the files of one run")
@pytest.mark.parametrize("place", ["folder", *(["bucket"] if SOAK else [])])
@pytest.mark.parametrize("compress", [True, *([False] if SOAK else [])])
@pytest.mark.parametrize("second", ["nothing", "other", "failed"])
def test_a_place_holds_the_files_of_one_run(
    tmp_path: Path, s3: ObjectStore, place: str, compress: bool, second: str
) -> None:
    output = s3.uri("jobs/job/output") if place == "bucket" else str(tmp_path / "out")
    first = HandMade.make(tmp_path / "1", output=output, remote=True, compress=compress)
    first.fill(1, {"model/a": b"1", "model/deep/w": b"1", "output/data/y": b"1"})
    assert first.collect() == (0, "")
    run = HandMade.make(
        tmp_path / "2", output=output, remote=True, compress=not compress if second == "other" else compress
    )
    run.write("collect")
    assert holds_earlier(run.paths)
    if second != "nothing":
        run.fill(1, {"model/b": b"2"})
    assert run.collect("Failed" if second == "failed" else "Completed") == (0, "")
    expected = set() if second != "other" else {"model/b"} if compress else {"model.tar.gz"}
    assert stored_at(output, s3) == expected


def stored_at(output: str, s3: ObjectStore) -> set[str]:
    if output.startswith("s3://"):
        return {key.removeprefix("jobs/job/output/") for key in s3.listed() if key.startswith("jobs/job/output/")}
    root = Path(output)
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


# --- faults ----------------------------------------------------------------------------------------------------------


def failed(said: str) -> str:
    """Checks that a process told one error, and returns it."""
    lines = said.splitlines()
    assert lines[-1].startswith("error: ClientError: Artifact upload failed: "), said
    assert "Traceback" not in said
    return lines[-1]


def rest_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    require("root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.promise("artefacts", "a model is stored whole or not at all, and a job without it has failed")
@pytest.mark.promise("sagemaker-differences", "absent here: a full disk, and the job is a success")
def test_a_full_disk_is_told_and_leaves_no_part(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "1m") as small:
        run = HandMade.make(tmp_path / "run", output=str(small / "job/output"), remote=True)
        run.fill(1, {"model/x": os.urandom(3 << 20), "output/data/y": b"y"})
        code, said = run.collect()
        assert code == 1
        assert "the disk is full" in failed(said)
        assert rest_of(small) == []
        assert run.artefacts() == {}


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = HandMade.make(tmp_path / "run", output=str(tmp_path / "file/output"), remote=True)
    run.fill(1, {"model/x": b"x"})
    code, said = run.collect()
    assert code == 1
    assert str(tmp_path / "file/output/model.tar.gz") in failed(said)


def test_a_bucket_that_is_not_there_is_told(tmp_path: Path, s3: ObjectStore) -> None:
    run = HandMade.make(tmp_path / "run", output="s3://no-such-bucket-at-all/o", remote=True)
    run.fill(1, {"model/x": b"x"})
    code, said = run.collect()
    assert code == 1
    assert "s3://no-such-bucket-at-all/o/model.tar.gz: there is no such bucket" in failed(said)


def test_a_server_that_dies_in_the_middle_of_an_upload_is_told(
    tmp_path: Path, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes after it has taken some of the first part."""
    run = HandMade.make(tmp_path / "run", output=s3.uri("o"), remote=True)
    run.fill(1, {"model/x": os.urandom(40 << 20)})
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(30)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        process = run.start("collect", HEADRACE_JOB_STATUS="Completed", AWS_MAX_ATTEMPTS="2")
        try:
            connection, _ = listener.accept()
            with connection:
                assert b"uploads" in connection.recv(65536)
                body = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
                )
            part, _ = listener.accept()
            with part:
                part.recv(1 << 20)
        except BaseException:
            process.kill()
            raise
        finally:
            listener.close()
            began = time.monotonic()
            _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "no answer from" in failed(said)
    assert time.monotonic() - began < allowed(15)
    assert rest_of(run.paths.root / "engine") == ["collect.json"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_collection_that_is_killed_leaves_no_part(tmp_path: Path, number: int) -> None:
    run = HandMade.make(tmp_path / "run")
    run.fill(1, {"model/x": os.urandom(80 << 20)})
    process = run.start("collect", HEADRACE_JOB_STATUS="Completed")
    until(lambda: run.paths.output.exists(), what="the collection to begin")
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode != 0
    assert rest_of(run.paths.output) == []
    if number == signal.SIGTERM:
        assert "stopped before all was stored" in failed(said)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    run = HandMade.make(tmp_path / "run")
    run.fill(1, {"model/x": b"x"})
    merged = merge([("algo-1", run.base(), run.base() / "model")])
    merged.entries[0].path.unlink()
    with pytest.raises(StorageError, match="model/x cannot be read: No such file"), (tmp_path / "a").open("wb") as file:
        write_archive(merged, file)
