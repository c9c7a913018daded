"""A grid's journal: what it has is what was written, whoever reads it and whenever; what does not fit is refused."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.errors import StorageError, UsageError
from headrace.grid.controller.grid_controller import GridController
from headrace.grid.grid_record import (
    AttemptRecord,
    AttemptState,
    ControllerProcess,
    CopyRecord,
    CopyState,
    GridRecord,
    LineRecord,
    LineState,
)
from headrace.grid.journal import GONE, Journal, JournalConflict
from headrace.grid.read_grid import grid_names, journal_path, lines_named, read_grid, read_notes
from headrace.runs import Cause, CauseKind, Status

KEYS = [f"{number:012x}" for number in range(4)]
replace = msgspec.structs.replace


def a_line(index: int, key: str, state: LineState = LineState.WAITING, region: str = "eu-west-1") -> LineRecord:
    return LineRecord(
        index, key, f"array.txt:{index + 1}", {"region": region, "hyperparameters.lr": 0.1}, f"big-{key}", "local",
        region, 1.5, 60.0, state, waits_for=(("s3://a/b", region),) if index % 2 else (),
    )  # fmt: skip


def a_grid(*lines: LineRecord) -> GridRecord:
    copy = CopyRecord("s3://a/b", "us-east-1", "eu-west-1", "s3://c/b", CopyState.WAITING, 0.25)
    return GridRecord("big", "/grids/array.yaml", "d1", 100.0, lines, (copy,), budget=12.5, deadline=900.0)


def an_attempt(key: str, number: int) -> AttemptRecord:
    name = f"big-{key}" + (f"-a{number}" if number > 1 else "")
    return AttemptRecord(number, name, "local", "eu-west-1", "r1", AttemptState.INTENDED, 101.0)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    made = Journal(journal_path("big"), create=True)
    made.begin(a_grid(*(a_line(index, key) for index, key in enumerate(KEYS))))
    return made


def test_a_reader_sees_the_grid_as_it_was_written_and_its_notes(journal: Journal) -> None:
    cause = Cause(CauseKind.INSTANCE_NOT_STARTED, "none", infrastructure=True)
    journal.take(ControllerProcess(7, "here", 99.0))
    journal.intend(KEYS[1], an_attempt(KEYS[1], 1))
    journal.started(KEYS[1], 1, "run-1", 102.0)
    ended = replace(
        an_attempt(KEYS[1], 1), state=AttemptState.ENDED, run_id="run-1", started=102.0, ended=110.0,
        status=Status.FAILED, cause=cause, cost=0.5, billable_seconds=8.0,
    )  # fmt: skip
    journal.ended(KEYS[1], ended, LineState.WAITING, not_before=120.0)
    journal.copied(
        CopyRecord("s3://a/b", "us-east-1", "eu-west-1", "s3://c/b", CopyState.DONE, 0.25, 9, 9, 1.0, 2.0, 0.75)
    )
    journal.note(110.0, KEYS[1], "again")
    seen = read_grid("big")
    assert seen.lines[1].attempts == (ended,)
    assert (seen.lines[1].state, seen.lines[1].not_before) == (LineState.WAITING, 120.0)
    assert seen.cost == 1.25
    assert seen.controller == ControllerProcess(7, "here", 99.0)
    assert [note.text for note in read_notes("big")] == ["again"]
    assert grid_names() == ("big",)
    journal.close()


def test_what_does_not_fit_is_refused_and_changes_nothing(journal: Journal) -> None:
    key = KEYS[0]
    with pytest.raises(JournalConflict):
        journal.started(key, 1, "run-1", 1.0)
    journal.intend(key, an_attempt(key, 1))
    with pytest.raises(JournalConflict):
        journal.intend(key, an_attempt(key, 2))
    with pytest.raises(JournalConflict):  # another line's job name
        journal.intend(KEYS[1], replace(an_attempt(KEYS[1], 1), job_name=f"big-{key}"))
    assert read_grid("big").lines[1].state is LineState.WAITING, "the whole change is undone"
    journal.started(key, 1, "run-1", 1.0)
    with pytest.raises(JournalConflict):
        journal.started(key, 1, "run-2", 1.0)
    with pytest.raises(JournalConflict):
        journal.finish(9.0)
    with pytest.raises(JournalConflict):
        journal.begin(a_grid())
    assert read_grid("big").lines[0].attempts[0].run_id == "run-1"
    journal.close()


def test_a_line_that_moves_waits_for_its_copies_there_and_those_that_are_there_already_are_kept(
    journal: Journal,
) -> None:
    key, west = KEYS[0], CopyRecord("s3://a/b", "us-east-1", "us-west-2", "", CopyState.WAITING, 0.5)
    done = CopyRecord("s3://a/b", "us-east-1", "eu-west-1", "s3://c/b", CopyState.DONE, 0.25)
    journal.copied(done)
    for number, copies in ((1, (west,)), (2, (replace(done, state=CopyState.WAITING),))):
        region = copies[0].region
        journal.intend(key, an_attempt(key, number))
        ended = replace(an_attempt(key, number), state=AttemptState.ENDED, ended=110.0, status=Status.FAILED)
        journal.ended(key, ended, LineState.WAITING, region=region, copies=copies)
        line = read_grid("big").lines[0]
        assert (line.region, line.waits_for) == (region, (("s3://a/b", region),))
    assert {copy.region: copy.state for copy in read_grid("big").copies} == {
        "eu-west-1": CopyState.DONE,
        "us-west-2": CopyState.WAITING,
    }
    journal.close()


def test_a_changed_file_keeps_what_has_begun_and_stops_what_is_gone(journal: Journal) -> None:
    journal.intend(KEYS[0], an_attempt(KEYS[0], 1))
    new = "f" * 12
    moved = a_line(1, KEYS[1], region="us-west-2")
    journal.revise(a_grid(a_line(0, new), moved, a_line(2, KEYS[2], LineState.UNPLACED)))
    seen = {line.key: line for line in read_grid("big").lines}
    assert seen[KEYS[0]].state is LineState.STARTING
    assert not seen[KEYS[0]].in_file
    assert (seen[KEYS[3]].state, seen[KEYS[3]].reason) == (LineState.STOPPED, GONE)
    assert seen[new].state is LineState.WAITING
    assert (seen[KEYS[1]].region, seen[KEYS[1]].waits_for) == ("us-west-2", (("s3://a/b", "us-west-2"),))
    assert seen[KEYS[2]].state is LineState.UNPLACED
    journal.revise(a_grid(a_line(0, KEYS[0], region="us-west-2"), a_line(1, KEYS[3])))
    seen = {line.key: line for line in read_grid("big").lines}
    assert seen[KEYS[3]].state is LineState.WAITING, "it came back"
    assert seen[KEYS[0]].region == "eu-west-1", "where it has begun"
    assert [line.key for line in read_grid("big").lines][:2] == [KEYS[0], KEYS[3]]
    journal.close()


def test_a_change_by_another_process_is_noticed_and_one_by_this_one_is_not(journal: Journal) -> None:
    assert journal.changed_elsewhere()
    journal.note(1.0, "", "mine")
    assert not journal.changed_elsewhere()
    code = (
        "import sys; from pathlib import Path; from headrace.grid.journal import Journal; "
        "Journal(Path(sys.argv[1])).ask_stop(5.0)"
    )
    subprocess.run([sys.executable, "-c", code, str(journal.path)], check=True, timeout=60)
    assert journal.changed_elsewhere()
    assert not journal.changed_elsewhere()
    assert read_grid("big").stop_asked == 5.0
    journal.close()


def test_a_grid_that_is_stopped_first_stops_what_costs_money_and_closes_the_rest_in_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    asked, writes = threading.Event(), Counter[str]()

    def instant(name: str) -> None:
        writes[name] += 1
        if name == "before stop":
            asked.set()
        if name == "before close_lines":
            assert asked.wait(10), "lines are closed while a run goes on that nobody has asked to stop"

    keys = [f"{number:012x}" for number in range(300)]
    with contextlib.closing(Journal(journal_path("big"), create=True, instant=instant)) as journal:
        journal.begin(a_grid(*(a_line(index, key) for index, key in enumerate(keys))))
        journal.intend(keys[0], an_attempt(keys[0], 1))
        journal.started(keys[0], 1, "no-such-run", 102.0)
        journal.ask_stop(103.0)
        controller = GridController(
            journal, None, None, told=lambda *_: None, told_copy=lambda _: None, instant=instant
        )
        with contextlib.closing(controller):
            grid = controller.run()
    assert {(line.state, line.reason) for line in grid.lines} == {(LineState.STOPPED, "stopped on request")}
    assert writes["after close_lines"] == 1
    assert [note.text for note in read_notes("big") if not note.key] == [
        "stopped on request: nothing more is started, runs are stopped"
    ]


def test_a_line_is_found_by_what_people_call_it(journal: Journal) -> None:
    first, second, third = (a_line(index, key) for index, key in enumerate(KEYS[:3]))
    gone = replace(third, place=first.place, in_file=False)
    grid = a_grid(first, replace(second, place="row 7 of the query"), gone)
    assert lines_named(grid, ["array.txt:1", "1", KEYS[0], "2", KEYS[2]]) == (first, grid.lines[1], gone)
    with pytest.raises(UsageError, match=f"keys: {KEYS[0]}, {KEYS[2]}"):
        lines_named(a_grid(first, replace(gone, in_file=True)), ["array.txt:1"])
    with pytest.raises(UsageError, match="no line is called '8'"):
        lines_named(grid, ["8"])


def test_a_journal_that_is_missing_damaged_or_newer_is_named(journal: Journal) -> None:
    with pytest.raises(UsageError, match="there is no grid 'small'"):
        read_grid("small")
    with journal._write("test") as database:
        database.execute("PRAGMA user_version=99")
    journal.close()
    with pytest.raises(UsageError, match="newer headrace"):
        read_grid("big")
    journal_path("big").write_bytes(b"no database at all, but as long as the header of one is" * 9)
    with pytest.raises(StorageError, match="cannot be used") as raised:
        read_grid("big")
    assert "it is damaged" in raised.value.hint
    for name, hint in (
        ("bigg", "did you mean 'big'"),
        ("../grids/big", "there are big"),
        ("array.yaml", "and not the file"),
    ):
        with pytest.raises(UsageError, match="there is no grid") as wrong:
            read_grid(name)
        assert hint in wrong.value.hint


class JournalMachine(RuleBasedStateMachine):
    """Writes at random, closes and opens again, and compares with what should be there."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "big" / "journal.sqlite"
        self.journal = Journal(self.path, create=True)
        self.lines: dict[str, LineRecord] = {}
        self.clock = 100.0

    def teardown(self) -> None:
        self.journal.close()
        self.folder.cleanup()

    @initialize()
    def begin(self) -> None:
        lines = [a_line(index, key) for index, key in enumerate(KEYS)]
        self.journal.begin(a_grid(*lines))
        self.lines = {line.key: line for line in lines}

    def tick(self) -> float:
        self.clock += 1.0
        return self.clock

    @rule(key=st.sampled_from(KEYS))
    def intend(self, key: str) -> None:
        line = self.lines[key]
        attempt = replace(an_attempt(key, len(line.attempts) + 1), intended=self.tick())
        if line.state is not LineState.WAITING:
            with pytest.raises(JournalConflict):
                self.journal.intend(key, attempt)
            return
        self.journal.intend(key, attempt)
        self.lines[key] = replace(
            line, state=LineState.STARTING, not_before=0.0, reason="", attempts=(*line.attempts, attempt)
        )

    @rule(key=st.sampled_from(KEYS))
    def started(self, key: str) -> None:
        line = self.lines[key]
        t = self.tick()
        if line.state is not LineState.STARTING:
            with pytest.raises(JournalConflict):
                self.journal.started(key, len(line.attempts), "run", t)
            return
        self.journal.started(key, len(line.attempts), "run", t)
        last = replace(line.attempts[-1], state=AttemptState.RUNNING, run_id="run", started=t)
        self.lines[key] = replace(line, state=LineState.RUNNING, attempts=(*line.attempts[:-1], last))

    @rule(
        key=st.sampled_from(KEYS),
        state=st.sampled_from([LineState.WAITING, LineState.COMPLETED, LineState.FAILED, LineState.STOPPED]),
        cost=st.none() | st.floats(0, 9),
    )
    def ended(self, key: str, state: LineState, cost: float | None) -> None:
        line = self.lines[key]
        if line.state not in (LineState.STARTING, LineState.RUNNING):
            with pytest.raises(JournalConflict):
                self.journal.ended(key, an_attempt(key, len(line.attempts) or 1), state)
            return
        last = replace(
            line.attempts[-1], state=AttemptState.ENDED, ended=self.tick(), status=Status.FAILED,
            cause=Cause(CauseKind.PREEMPTED, "taken", infrastructure=True), cost=cost,
        )  # fmt: skip
        self.journal.ended(key, last, state, not_before=7.0)
        self.lines[key] = replace(line, state=state, not_before=7.0, attempts=(*line.attempts[:-1], last))

    @rule(keys=st.sets(st.sampled_from(KEYS)))
    def retry(self, keys: set[str]) -> None:
        again = {key for key in keys if self.lines[key].state in (LineState.FAILED, LineState.STOPPED)}
        assert self.journal.retry(sorted(keys)) == len(again)
        for key in again:
            line = self.lines[key]
            self.lines[key] = replace(
                line, state=LineState.WAITING, not_before=0.0, reason="", extra_attempts=line.extra_attempts + 1
            )

    @rule(key=st.sampled_from(KEYS))
    def close_line(self, key: str) -> None:
        line = self.lines[key]
        if line.state is LineState.WAITING:
            self.journal.close_lines({key: (LineState.STOPPED, "the budget")})
            self.lines[key] = replace(line, state=LineState.STOPPED, reason="the budget")

    @precondition(lambda self: self.lines)
    @rule()
    def reopen(self) -> None:
        self.journal.close()
        self.journal = Journal(self.path)

    @invariant()
    def has_what_was_written(self) -> None:
        found = self.journal.read()
        if not self.lines:
            assert found is None
            return
        assert found is not None
        assert {line.key: line for line in found.lines} == self.lines
        attempts = [attempt for line in found.lines for attempt in line.attempts]
        going = found.counts[LineState.STARTING] + found.counts[LineState.RUNNING]
        assert sum(attempt.state is not AttemptState.ENDED for attempt in attempts) == going


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
