"""`headrace fetch`: the record of a run, brought from a bucket into a folder of runs, where every command reads it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from command_line import Cli, Imported

from flaky_s3 import flaky
from headrace.cli.commands import output
from headrace.instance.storage import Store
from headrace.runs import EventWriter, LogWriter, RunPaths, Status, Stream, create_run, list_runs
from headrace.runs.events import JobStarted, RunFinished
from headrace.runs.segment_reader import Copied, RecordCopy, WriterCursor
from headrace.runs.segment_writer import SegmentWriter
from objectstore import ObjectStore
from patience import allowed, until


class Elsewhere:
    """A run on another machine, whose record is stored in a bucket."""

    def __init__(self, folder: Path, place: str, store: Store) -> None:
        self.paths = create_run("far", runs=folder)
        self._writer = lambda: SegmentWriter(self.paths, store, place, "engine", self.paths.root / "stored")
        self.event(JobStarted(t=time.time()))

    def event(self, event: JobStarted | RunFinished) -> None:
        with EventWriter(self.paths.events("engine")) as events:
            events.write(event)

    def say(self, text: str) -> None:
        with LogWriter(self.paths.log(Stream("dnn", "algo-1", "0"))) as log:
            log.write_line("o", text.encode())

    def store(self, last: bool = False) -> None:
        self._writer().store(last)


@pytest.fixture
def far(s3: ObjectStore, tmp_path: Path) -> Iterator[Elsewhere]:
    """A run on another machine, whose record is stored in the bucket."""
    with Store() as store:
        yield Elsewhere(tmp_path / "elsewhere", s3.uri("runs"), store)


@pytest.fixture
def bucket_cli(s3: ObjectStore, tmp_path: Path, imported: Imported) -> Cli:
    return Cli(tmp_path, imported)  # with the variables of the bucket


def test_a_run_elsewhere_is_fetched_followed_and_read_as_any_other(
    bucket_cli: Cli, s3: ObjectStore, far: Elsewhere
) -> None:
    cli = bucket_cli
    far.say("first")
    far.store()
    fetched = json.loads(cli("fetch", s3.uri("runs/far"), "--output", "json").stdout)
    assert (fetched["run_id"], fetched["complete"], fetched["status"]) == (far.paths.id, False, "InProgress")
    assert fetched["uri"] == s3.uri(f"runs/{far.paths.id}")
    assert far.paths.id in cli("ps").stdout
    far.say("second")
    far.store()
    following = cli.start("fetch", "far", "--follow", "--every", "0.2")
    reading = cli.start("logs", "far", "-f")
    assert reading.stdout is not None
    assert [reading.stdout.readline() for _ in range(2)] == ["dnn/algo-1[0] first\n", "dnn/algo-1[0] second\n"]
    far.say("third")
    far.event(RunFinished(t=time.time(), status=Status.COMPLETED))
    far.store(last=True)
    assert reading.communicate(timeout=60) == ("dnn/algo-1[0] third\n", f"headrace: {far.paths.id}: Completed\n")
    shown = following.communicate(timeout=60)[0]
    assert (following.returncode, reading.returncode) == (0, 0)
    assert f"{far.paths.id}: Completed; " in shown
    assert shown.endswith("; complete\n")
    copy = RunPaths(cli.runs / far.paths.id)
    for name in ("run.json", "events/engine.jsonl", "logs/dnn/algo-1/0.log"):
        assert (copy.root / name).read_bytes() == (far.paths.root / name).read_bytes()
    again = json.loads(cli("fetch", "far", "--output", "json").stdout)
    assert (again["segments"], again["bytes"], again["complete"]) == (0, 0, True), "only what is new is asked for"


def test_looking_at_a_copy_brings_it_up_to_date_and_an_unreachable_bucket_is_told(
    bucket_cli: Cli, s3: ObjectStore, far: Elsewhere
) -> None:
    cli = bucket_cli
    far.store()
    assert cli("fetch", s3.uri("runs/far")).returncode == 0
    refused = cli("stop", "far")
    assert refused.returncode == 2
    assert "is a copy: the run is on" in refused.stderr
    cli.env["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"
    cut = cli("status", "far")
    assert cut.returncode == 0
    assert "InProgress" in cut.stdout
    assert cut.stderr.count("cannot be brought up to date") == 1
    assert "a copy, with nothing new for " in cut.stdout
    assert "nothing new for " in cli("ps").stdout
    cli.env["AWS_ENDPOINT_URL"] = s3.endpoint
    far.event(RunFinished(t=time.time(), status=Status.COMPLETED))
    far.store(last=True)
    assert json.loads(cli("status", "far", "--output", "json").stdout)["TrainingJobStatus"] == "Completed"
    cli.env["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9"
    assert cli("status", "far").stderr == "", "a complete copy needs no bucket"


def test_ctrl_c_ends_the_wait_for_a_bucket_that_does_not_answer_at_the_end_of_a_run(
    bucket_cli: Cli, s3: ObjectStore, job_file: Callable[..., str], tmp_path: Path
) -> None:
    cli = bucket_cli
    script = f"import pathlib, time\nwhile not pathlib.Path('{tmp_path / 'stop'}').exists():\n    time.sleep(0.05)\n"
    job = job_file(script, extra=f"record: {{uri: {s3.uri('runs')}, interval: 1}}\n")
    with flaky(s3.endpoint) as proxy:
        cli.env["AWS_ENDPOINT_URL"] = proxy.endpoint
        running = cli.start("run", job)
        until(s3.listed, 30)
        proxy.hung = True
        (tmp_path / "stop").touch()
        until(lambda: any(run.finished for run in list_runs(cli.runs)), 30)
        began = time.monotonic()
        running.send_signal(signal.SIGINT)
        shown = "".join(running.communicate(timeout=60))
        assert time.monotonic() - began < allowed(10)
        proxy.hung = False
        later = cli("wait", "small")
        assert later.returncode == 0
        assert f"storing the end of the record in {s3.uri('runs')}" in later.stderr
        assert "not stored" not in later.stderr + cli("status", "small").stdout
        assert json.loads(cli("fetch", s3.uri("runs/small"), "--into", str(tmp_path), "--output", "json").stdout)[
            "complete"
        ]
        assert cli("wait", "small").stderr == "", "nothing is left"
    assert running.returncode == 0, shown
    assert "small-" in shown
    assert f"warning: the end of the record was not stored in {s3.uri('runs')}: broken off by Ctrl-C" in shown
    assert f"  record: headrace fetch {s3.uri('runs')}/small-" in shown
    assert f"headrace: storing the end of the record in {s3.uri('runs')} (Ctrl-C ends this)" in shown


def test_what_cannot_be_fetched_is_said_with_a_hint(
    bucket_cli: Cli, s3: ObjectStore, far: Elsewhere, tmp_path: Path, job_file: Callable[..., str]
) -> None:
    cli = bucket_cli
    far.store()
    nothing = cli("fetch", s3.uri("runs"))
    assert nothing.returncode == 2
    assert f"name one of the runs in {s3.uri('runs')}: {far.paths.id}" in nothing.stderr
    cli.env["HEADRACE_HOME"] = str(tmp_path)
    (tmp_path / "runs").symlink_to(tmp_path / "elsewhere")
    for what in ("far", s3.uri("runs/far")):
        own = cli("fetch", what)
        assert own.returncode == 2
        assert "is the record itself, and no copy" in own.stderr
    into = cli("fetch", s3.uri("runs/far"), "--into", str(tmp_path / "other"))
    assert into.returncode == 0
    assert (tmp_path / "other" / far.paths.id / "run.json").is_file()
    job = job_file("pass", extra="record: {uri: /shared/records, interval: 0}\n")
    wrong = cli("plan", job)
    assert wrong.returncode == 2
    assert "record.uri: must be an s3:// URI" in wrong.stderr
    assert "record.interval: must be 1 to 3600 seconds" in wrong.stderr
    for bucket, rule in (
        ("Bad_Bucket", "must name a bucket: the name must be"),
        ("headrace-local", "a folder of this machine"),
    ):
        given = ("--set", f"record.uri=s3://{bucket}/runs", "--set", "record.interval=3")
        assert rule in cli("plan", job, *given).stderr
    planned = cli("plan", job, "--set", "record.uri=s3://bkt/runs", "--set", "record.interval=3")
    assert "record: s3://bkt/runs, every 3 s" in planned.stdout.splitlines()


def test_a_copy_that_is_followed_says_for_how_long_nothing_new_has_come(capsys: pytest.CaptureFixture[str]) -> None:
    class Copy:
        def __init__(self, *ages: float) -> None:
            self.ages = list(ages)

        def update(self) -> Copied:
            cursor = WriterCursor("1", time.time() - self.ages.pop(0), last=not self.ages)
            return Copied("s3://bkt/runs/far", "engine", {"engine": cursor})

    output._follow(cast("RecordCopy", Copy(2, 31, 40, 61, 90, 1, 31, 1)), 0.0)
    assert [line.split()[-2] for line in capsys.readouterr().err.splitlines()] == ["31", "61", "31"]
