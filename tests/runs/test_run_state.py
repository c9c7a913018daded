"""What events say about a run, and what is left of a run whose files were damaged or whose engine was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from headrace.runs import (
    Cause,
    CauseKind,
    Damage,
    EventWriter,
    Run,
    RunPaths,
    Status,
    Stream,
    ValueSecond,
    create_run,
    state_of,
)
from headrace.runs.event_text import _SENTENCES, counted, losses, sentence
from headrace.runs.events import (
    ArtefactsStored,
    AttemptStarted,
    Clash,
    DataWorkerLost,
    Event,
    HostLost,
    JobFinished,
    JobStarted,
    JobStopping,
    ProgramExited,
    ProgramStarted,
    RunFinished,
    Version,
)

VALUE = ValueSecond(t=1.0, name="loss", stream="0", count=1, last=1.0, low=1.0, high=1.0, total=1.0)
CAUSE = Cause(CauseKind.PROGRAM_EXITED, group="dnn", host="algo-1", stream="0", exit_code=3)


def started(t: float, stream: str = "0", pid: int = 7) -> ProgramStarted:
    return ProgramStarted(t=t, group="dnn", host="algo-1", stream=stream, pid=pid)


def exited(t: float, stream: str = "0", code: int = 0) -> ProgramExited:
    return ProgramExited(t=t, group="dnn", host="algo-1", stream=stream, exit_code=code)


def test_every_kind_of_event_has_its_sentence() -> None:
    assert _SENTENCES.keys() == {*get_args(Event)}


@pytest.mark.parametrize(
    ("events", "supervised", "status", "cause", "finished"),
    [
        ([], True, Status.IN_PROGRESS, None, False),
        ([JobStarted(t=1)], True, Status.IN_PROGRESS, None, False),
        ([JobStopping(t=1, reason="asked to")], True, Status.STOPPING, None, False),
        ([JobFinished(t=1, status=Status.COMPLETED)], True, Status.IN_PROGRESS, None, False),
        ([JobFinished(t=1, status=Status.FAILED, cause=CAUSE)], True, Status.IN_PROGRESS, CAUSE, False),
        ([RunFinished(t=1, status=Status.COMPLETED)], True, Status.COMPLETED, None, True),
        ([RunFinished(t=1, status=Status.COMPLETED)], False, Status.COMPLETED, None, True),
        ([RunFinished(t=1, status=Status.STOPPED)], False, Status.STOPPED, None, True),
        (
            [JobFinished(t=1, status=Status.FAILED, cause=CAUSE), RunFinished(t=2, status=Status.FAILED)],
            False,
            Status.FAILED,
            CAUSE,
            True,
        ),
        ([JobStarted(t=1)], False, Status.FAILED, Cause(CauseKind.ENGINE_FAILED, "the engine was killed"), True),
        (
            [JobFinished(t=1, status=Status.COMPLETED)],
            False,
            Status.FAILED,
            Cause(CauseKind.ENGINE_FAILED, "the engine was killed"),
            True,
        ),
        ([JobFinished(t=1, status=Status.FAILED, cause=CAUSE)], False, Status.FAILED, CAUSE, True),
    ],
)
def test_status_and_cause_follow_from_the_events(
    events: list[Event], supervised: bool, status: Status, cause: Cause | None, finished: bool
) -> None:
    state = state_of(events, supervised)
    assert (state.status, state.cause, state.finished) == (status, cause, finished)


def test_programs_are_paired_with_their_exits_even_when_one_starts_twice() -> None:
    state = state_of([started(1, pid=7), exited(2, code=1), started(3, pid=8), exited(4)], True)
    assert [(p.pid, p.started, p.ended, p.exit_code) for p in state.programs] == [(7, 1, 2, 1), (8, 3, 4, 0)]


def test_an_exit_without_a_start_is_kept() -> None:
    (program,) = state_of([exited(2, code=1)], True).programs
    assert (program.stream, program.started, program.exit_code) == (Stream("dnn", "algo-1", "0"), None, 1)


def test_a_lost_data_worker_degrades_and_a_lost_host_alone_does_not() -> None:
    worker = DataWorkerLost(t=1, group="data", host="algo-2", reason="killed by SIGKILL", recovered=True)
    host = HostLost(t=2, group="data", host="algo-2", reason="silent")
    assert state_of([worker], True).degraded
    assert not state_of([host], True).degraded
    assert state_of([worker, host], True).lost == (worker, host)


@pytest.mark.parametrize(
    ("streams", "words"),
    [
        ([""], "data workers were lost"),
        (["tf-worker-0"], "data workers were lost"),
        (["tf-dispatcher"], "the dispatcher of tf.data.service was lost"),
        (["tf-dispatcher", "tf-worker-0"], "the dispatcher of tf.data.service and data workers were lost"),
        ([], ""),
    ],
)
def test_a_degraded_run_says_whom_it_lost(streams, words) -> None:
    host = HostLost(t=2, group="data", host="algo-2", reason="silent")
    lost = [DataWorkerLost(t=1, group="data", host="algo-2", reason="killed", stream=each) for each in streams]
    assert losses([*lost, host]) == words


def test_events_of_all_writers_come_in_the_order_of_time(tmp_path: Path) -> None:
    paths = create_run("j", runs=tmp_path)
    with EventWriter(paths.events("engine")) as engine, EventWriter(paths.events("algo-1")) as host:
        engine.write(JobStarted(t=1.0))
        host.write(started(2.0))
        host.write(exited(4.0))
        engine.write(JobStopping(t=3.0, reason="r"))
        engine.write(RunFinished(t=5.0, status=Status.COMPLETED))
    run = Run(paths)
    assert [event.t for event in run.events()] == [1, 2, 3, 4, 5]
    assert (run.status, run.started, run.ended, run.degraded, run.finished) == (Status.COMPLETED, 1.0, 5.0, False, True)
    assert run.streams() == [Stream("dnn", "algo-1", "0")]


@pytest.mark.promise("runs", "a record that is damaged or still written is read as far as it goes")
def test_a_torn_last_line_is_waited_for_and_a_damaged_one_reported_once(tmp_path: Path) -> None:
    paths = create_run("j", runs=tmp_path)
    file = paths.events("engine")
    file.parent.mkdir()
    good = msgspec.json.encode(JobStarted(t=1.0))
    file.write_bytes(b"\x00\x00garbage\n" + good + b"\n" + b'{"event":"job_st')
    run = Run(paths)
    assert run.events() == [JobStarted(t=1.0)]
    assert run.status is Status.IN_PROGRESS
    assert run.events() == [JobStarted(t=1.0)]
    (damage,) = run.damage
    assert (damage.path, damage.line) == (str(file), 1)
    with file.open("ab") as torn:
        torn.write(b'arted","t":2.0}\n')
    assert [event.t for event in run.events()] == [1.0, 2.0]
    assert len(run.damage) == 1


def test_records_of_a_newer_headrace_are_not_called_damaged_and_counted_once_a_kind(tmp_path: Path) -> None:
    paths = create_run("j", runs=tmp_path)
    good = msgspec.json.encode(JobStarted(t=1.0)) + b"\n"
    newer = b'{"event":"gpu_lost","t":2.0,"gpu":3}\n'
    paths.events("engine").parent.mkdir()
    paths.events("engine").write_bytes(newer + good + newer)
    paths.events("algo-1").write_bytes(newer + b'{"event":"gpu_lost","t":3.0,\n{"t":4.0}\n{"event":"job_started"}\n')
    ranks = [paths.metrics(Stream("dnn", "algo-1", name)) for name in ("0", "1")]
    ranks[0].parent.mkdir(parents=True)
    value = msgspec.json.encode(VALUE) + b"\n"
    for path in ranks:
        path.write_bytes(b'{"metric":"tpu","t":2.0}\n' + value)
    run = Run(paths)
    for _ in range(2):
        assert run.events() == [JobStarted(t=1.0)]
        assert [len(found) for found in run.metrics().values()] == [1, 1]
        damaged = [(damage.path, damage.line) for damage in run.damage if damage.line]
        assert damaged == [(str(paths.events("algo-1")), line) for line in (2, 3, 4)]
        assert [damage for damage in run.damage if not damage.line] == [
            Damage(str(paths.root), 0, "3 records of event 'gpu_lost' left out: written by a newer headrace"),
            Damage(str(paths.root), 0, "2 records of metric 'tpu' left out: written by a newer headrace"),
        ]
    assert all("newer" not in damage.reason for damage in run.damage if damage.line)


def test_a_run_whose_directory_is_all_but_empty_answers_everything(tmp_path: Path) -> None:
    run = Run(create_run("j", runs=tmp_path))
    assert run.events() == []
    assert run.metrics() == {}
    assert list(run.logs()) == []
    assert run.programs == ()
    assert (run.started, run.ended, run.cause) == (None, None, None)


def make_orphan(runs: Path) -> RunPaths:
    """A run made by a process that is gone without a last word."""
    code = f"""
from pathlib import Path
from headrace.runs import EventWriter, create_run
from headrace.runs.events import JobStarted
paths = create_run("j", runs=Path({str(runs)!r}))
EventWriter(paths.events("engine")).write(JobStarted(t=1.0))
print(paths.root)
"""
    root = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30).stdout
    return RunPaths(Path(root.strip()))


def test_a_run_whose_supervisor_is_gone_without_a_last_word_has_failed(tmp_path: Path) -> None:
    run = Run(make_orphan(tmp_path))
    assert run.status is Status.FAILED
    assert str(run.cause) == "the engine was killed"
    assert run.finished
    assert run.ended == 1.0


def test_one_file_is_not_called_files() -> None:
    stored = ArtefactsStored(t=0.0, name="model", uri="/out", files=1, bytes=0)
    assert "1 file," in sentence(stored)
    assert [counted(number, "file") for number in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


def brought(t: float, host: str, *versions: Version) -> ArtefactsStored:
    return ArtefactsStored(
        t=t, name="checkpoints", uri="/kept", files=len(versions), bytes=1, part=host, versions=versions
    )


def test_machines_that_bring_different_content_to_one_name_clash_and_the_last_one_is_kept() -> None:
    events = [
        brought(5.0, "algo-1", Version("a", "x", 1.0), Version("b", "x", 3.0), Version("c", "x", 1.0)),
        brought(5.1, "algo-2", Version("a", "x", 2.0), Version("b", "y", 2.0)),
        brought(5.2, "algo-3", Version("b", "x", 2.5)),
    ]
    (stored,) = state_of(events, supervised=True).artefacts
    assert (stored.clashes, stored.clash_count) == ((Clash("b", "algo-1", ("algo-2",)),), 1)
    assert (stored.files, stored.versions, stored.part) == (6, (), "")


def test_a_later_attempt_may_go_on_with_the_checkpoint_of_an_earlier_one_and_its_clashes_stay_told() -> None:
    first = [brought(1.0, "algo-1", Version("a", "x", 0.1)), brought(1.0, "algo-2", Version("b", "x", 0.1))]
    again = [AttemptStarted(t=2.0, number=2), brought(3.0, "algo-2", Version("a", "y", 2.5))]
    assert state_of([*first, *again], supervised=True).artefacts[0].clash_count == 0
    clash = [*first, brought(1.5, "algo-3", Version("a", "z", 0.2)), *again]
    assert state_of(clash, supervised=True).artefacts[0].clashes == (Clash("a", "algo-3", ("algo-1",)),)
