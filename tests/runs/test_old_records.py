"""Runs that headrace 0.1.0 recorded, when causes were sentences: they are read, decided and said as they were then.

`records_version_1` holds them: real runs of that version (``missing`` is what its coordinator decided), without what
is not read here.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from headrace.insight import report
from headrace.runs import Cause, CauseKind, EventWriter, Run, RunPaths, Status, create_run, old_records
from headrace.runs.describe import describe
from headrace.runs.events import JobFinished, RunFinished
from headrace.runs.log_lines import LogLine
from headrace.runs.run_paths import Stream

RECORDS = Path(__file__).parent / "records_version_1"
RUNS = ("budget", "engine-killed", "exit", "kill", "maxrun", "missing", "ok", "oom", "stall", "stopped")
KINDS = {
    "budget": CauseKind.BUDGET,
    "engine-killed": CauseKind.UNKNOWN,
    "exit": CauseKind.PROGRAM_EXITED,
    "kill": CauseKind.PROGRAM_EXITED,
    "maxrun": CauseKind.MAX_RUN,
    "missing": CauseKind.DATA_SERVICE_LOST,
    "oom": CauseKind.OUT_OF_MEMORY,
    "stall": CauseKind.STALLED,
    "stopped": CauseKind.STOPPED,
}
EXIT_CODES = {"budget": 4, "maxrun": 1, "stopped": 130, "ok": 0}


@pytest.fixture
def old(tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    return Run(RunPaths(shutil.copytree(RECORDS / request.param, tmp_path / request.param)))


def sentences(run: Run) -> list[str]:
    """The causes as they stand in the files."""
    lines = [line for path in run.paths.root.glob("events/*.jsonl") for line in path.read_bytes().splitlines()]
    causes = [msgspec.json.decode(line).get("cause") for line in lines]
    return [cause["reason"] for cause in causes if cause is not None]


@pytest.mark.parametrize("old", RUNS, indirect=True)
def test_the_words_of_an_old_cause_are_those_of_its_record_and_its_kind_is_known(old: Run) -> None:
    assert old.damage == []
    causes = [event.cause for event in old.events() if isinstance(event, JobFinished | RunFinished) and event.cause]
    assert sorted(cause.reason for cause in causes) == sorted(sentences(old))
    assert {cause.kind for cause in causes} == {KINDS[name] for name in [old.paths.root.name] if name in KINDS}


@pytest.mark.parametrize("old", RUNS, indirect=True)
def test_an_old_run_ends_with_the_exit_code_that_it_had(old: Run) -> None:
    state = old.state()
    assert state.exit_code == EXIT_CODES.get(old.paths.root.name, 1)
    assert describe(old)["TrainingJobStatus"] == state.status.value
    if old.paths.root.name == "maxrun":
        assert state.secondary_status.value == "MaxRuntimeExceeded"


@pytest.mark.parametrize("old", ["missing", "stall"], indirect=True)
def test_an_old_run_that_stood_still_is_judged_so_and_says_what_it_waited_for(old: Run) -> None:
    found = report(old).verdict
    assert found.name == "stalled"
    assert (found.rank, "tf-worker-0" in found.sentence) == (
        ("", True) if old.paths.root.name == "missing" else ("dnn/algo-1[0]", False)
    )


@pytest.mark.parametrize("old", ["ok"], indirect=True)
def test_what_the_search_for_metrics_left_out_is_read_from_the_logs_of_an_old_run(old: Run) -> None:
    assert [note for note in report(old).notes if "metric definition" in note] == [
        "dnn/algo-1[agent]: metric definitions: 1 values of loss were no finite numbers",
        "dnn/algo-1[agent]: metric definitions: 1 lines were searched in their first 4096 characters only",
    ]


def test_what_an_agent_left_out_is_told_once_with_its_number_if_there_is_one() -> None:
    one, two = Stream("g", "algo-1", "agent"), Stream("g", "algo-2", "agent")
    once = "(told once, counted at the end)"
    told = [
        LogLine(1.0, one, "o", "program 0 started"),
        LogLine(2.0, one, "o", f"metric definitions: lines were not searched: busy {once}"),
        LogLine(3.0, one, "o", "metric definition loss is switched off: slow"),
        LogLine(4.0, one, "o", "metric definitions: 7 lines were not searched: busy"),
        LogLine(4.0, two, "o", f"metric definitions: values of a were no numbers, the first: 'x' {once}"),
    ]
    assert old_records.left_out(told) == (
        "g/algo-1[agent]: metric definition loss is switched off: slow",
        "g/algo-1[agent]: metric definitions: 7 lines were not searched: busy",
        "g/algo-2[agent]: metric definitions: values of a were no numbers, the first: 'x'",
    )
    assert old_records.left_out(told[:1]) == ()


@pytest.mark.parametrize(
    "sentence",
    ["", "silent for 5 s", "exited with code", "MaxRuntimeExceeded", "stalled:", "a; stalled: b; stalled: c", "\0é"],
)
def test_any_sentence_is_said_again_as_it_was(sentence: str) -> None:
    line = msgspec.json.encode({"event": "run_finished", "cause": {"reason": sentence, "exit_code": 3}})
    cause = old_records.read_cause(line)
    assert cause is not None
    assert cause.reason == sentence


def test_a_cause_of_today_is_never_taken_for_an_old_one(tmp_path: Path) -> None:
    paths = create_run("j", runs=tmp_path)
    causes = [
        Cause(kind, "MaxRuntimeExceeded: no", "g", "algo-1", "0", 3) for kind in CauseKind if kind.name != "UNKNOWN"
    ]
    with EventWriter(paths.events("engine")) as events:
        for number, cause in enumerate(causes):
            events.write(RunFinished(t=float(number), status=Status.FAILED, cause=cause))
    assert [event.cause for event in Run(paths).events() if isinstance(event, RunFinished)] == causes


def test_a_cause_of_a_kind_that_only_a_newer_headrace_knows_is_read_with_its_detail(tmp_path: Path) -> None:
    paths = create_run("j", runs=tmp_path)
    line = {"event": "run_finished", "t": 1.0, "status": "Failed", "cause": {"kind": "eaten", "detail": "by a grue"}}
    paths.events("engine").parent.mkdir()
    paths.events("engine").write_bytes(msgspec.json.encode(line) + b"\n")
    run = Run(paths)
    assert run.cause == Cause(CauseKind.UNKNOWN, "by a grue")
    assert (str(run.cause), run.damage) == ("by a grue", [])
