"""A grid that was started, as its journal has it: what status, report and every other reader use. Plain values.

`headrace.grid.read_grid` returns one, while the grid runs and later.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

import msgspec

from headrace.grid.line import Line
from headrace.record_files import Time
from headrace.runs import Cause, Status


class LineState(str, Enum):
    """How far a line has come."""

    WAITING = "waiting"
    """For its copies, for a place among those that may run at once, or for another attempt."""
    STARTING = "starting"
    """An attempt is written down; nobody knows yet whether it has a run."""
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    """On request, by the budget or the deadline of the grid, or because its file has it no more."""
    STOPPED_EARLY = "stopped early"
    """By the grid's rule, because others were better; see `Rung`."""
    UNPLACED = "unplaced"
    """It can run nowhere."""

    @property
    def over(self) -> bool:
        """Whether nothing more happens to it of itself."""
        return self not in (LineState.WAITING, LineState.STARTING, LineState.RUNNING)

    @property
    def as_asked(self) -> bool:
        """Whether it came to an end that its grid asked for: nothing went wrong."""
        return self in (LineState.COMPLETED, LineState.STOPPED_EARLY)


class AttemptState(str, Enum):
    """How far an attempt has come."""

    INTENDED = "intended"
    """It was written down that it is about to be started."""
    RUNNING = "running"
    """It has a run, which may still be queued."""
    ENDED = "ended"


class CopyState(str, Enum):
    """How far a copy has come."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    """Whole and verified."""
    FAILED = "failed"


class AttemptRecord(msgspec.Struct, frozen=True):
    """One attempt of a line.

    Attributes:
        number: from 1.
        job_name: of its job: what it is found again by.
        engine: that runs it.
        region: where; empty where an engine has none.
        request: digest of what was asked for, see `headrace.grid.controller.request_digest`.
        state: how far it has come.
        intended: when it was written down, seconds since the epoch.
        run_id: its run; empty before it has one, or when it never got one.
        started: when it was known that it has a run.
        ended: when it was known that it is over.
        status: how it ended; None while it goes on.
        cause: why it did not succeed.
        cost: USD that its run has cost; None when that is not known.
        billable_seconds: for which its hosts are paid, all of them together; None when that is not known.
    """

    number: int
    job_name: str
    engine: str
    region: str
    request: str
    state: AttemptState
    intended: float
    run_id: str = ""
    started: float | None = None
    ended: float | None = None
    status: Status | None = None
    cause: Cause | None = None
    cost: float | None = None
    billable_seconds: float | None = None


class CopyRecord(msgspec.Struct, frozen=True):
    """One copy of data into a region.

    Attributes:
        place: ``s3://`` place of the data.
        source: region where they are.
        region: into which they are copied.
        target: ``s3://`` place of the copy.
        state: how far it has come.
        planned_cost: USD, as planned.
        bytes_done, bytes_total: progress; the total is None before it is known.
        started, ended: seconds since the epoch.
        cost: USD for what was copied; None before it is known.
        reason: why it failed.
    """

    place: str
    source: str
    region: str
    target: str
    state: CopyState
    planned_cost: float = 0.0
    bytes_done: int = 0
    bytes_total: int | None = None
    started: float | None = None
    ended: float | None = None
    cost: float | None = None
    reason: str = ""


class Rung(msgspec.Struct, frozen=True):
    """How a line stood at a step of its training, when it came there.

    Attributes:
        step: the step.
        value: its metric there.
        rank: its place among all that had come there, itself included; 1 is the best.
        of: how many these were.
        stopped: that was too low, and its run is to be stopped.
    """

    step: int
    value: float
    rank: int
    of: int
    stopped: bool

    def __str__(self) -> str:
        tens, ones = divmod(self.rank, 10)
        ending = "th" if tens % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(ones, "th")
        return f"{'stopped early: ' if self.stopped else ''}{self.rank}{ending} of {self.of} at step {self.step}"


class LineFacts(Line, frozen=True):
    """What a line is from its plan to its report.

    Attributes:
        job_name: of its first attempt's job; in a report of its newest one's.
        engine: that runs it.
        region: where it was placed; another attempt may be elsewhere, and a report has that of the newest one. Empty
            when it was placed nowhere, or the engine has none.
        planned_cost: USD, without copies; None with an unknown price.
        planned_seconds: until it is done, copies included; None when it was placed nowhere.
        state: how far it has come.
        in_file: the grid's file still has it.
        reason: why it is unplaced or was stopped, for people; why an attempt failed is in the attempt.
    """

    job_name: str
    engine: str
    region: str
    planned_cost: float | None
    planned_seconds: float | None
    state: LineState
    in_file: bool = True
    reason: str = ""

    @property
    def written(self) -> str:
        """Where it was written, for people; of one that the grid's file has no more it says so."""
        return self.place if self.in_file else f"{self.place} (not in the file now)"


class LineRecord(LineFacts, frozen=True):
    """One line, as a plan makes it and the journal has it.

    Attributes:
        waits_for: copies that it needs, as (place, region).
        not_before: when its next attempt may begin, seconds since the epoch; 0 for at once.
        extra_attempts: that `headrace grid retry` has allowed, above what the grid's file allows.
        stop_asked: when somebody asked to stop it alone, seconds since the epoch; None if nobody did.
        attempts: in their order.
        rungs: at which it was judged, in their order.
    """

    waits_for: tuple[tuple[str, str], ...] = ()
    not_before: float = 0.0
    extra_attempts: int = 0
    stop_asked: float | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    rungs: tuple[Rung, ...] = ()

    @property
    def early_stop(self) -> Rung | None:
        """Where it was decided that it stops before its end; None when it was not."""
        return next((rung for rung in self.rungs if rung.stopped), None)

    @property
    def attempt(self) -> AttemptRecord | None:
        """The latest attempt; None before the first one."""
        return self.attempts[-1] if self.attempts else None

    @property
    def cause(self) -> Cause | None:
        """Why the newest of its attempts that failed did; None of a line that has completed."""
        causes = [each.cause for each in self.attempts if each.cause is not None]
        return causes[-1] if causes and self.state is not LineState.COMPLETED else None

    @property
    def region_now(self) -> str:
        """The region of its newest attempt; of a line that waits, that of its next one."""
        attempt = self.attempt
        return attempt.region if attempt is not None and self.state is not LineState.WAITING else self.region

    @property
    def cost(self) -> float:
        """USD of all its attempts, as far as they are known."""
        return sum(each.cost or 0.0 for each in self.attempts)


class Note(msgspec.Struct, frozen=True):
    """What happened, for people; nothing is decided by it.

    Attributes:
        t: when, seconds since the epoch.
        key: of the line that it is about; empty for the whole grid.
        text: what happened.
    """

    t: Time
    key: str
    text: str


class ControllerProcess(msgspec.Struct, frozen=True):
    """The controller that has the grid, or had it last.

    Attributes:
        pid: its process.
        node: its machine.
        since: when it took the grid, seconds since the epoch.
    """

    pid: int
    node: str
    since: Time


class GridRecord(msgspec.Struct, frozen=True):
    """See the module.

    Attributes:
        name: of the grid.
        file: the grid's file, an absolute path.
        digest: of its lines.
        job_digest: of the job of which they are made, and of what is another in each region.
        created: when it was started first, seconds since the epoch.
        lines: in their order.
        copies: by region and place.
        ended: when every line was over; None while it goes on.
        budget: USD that all its attempts and copies may cost; None for no limit.
        deadline: when everything is stopped, seconds since the epoch; None for no deadline.
        stop_asked: when somebody asked to stop it, seconds since the epoch; None if nobody did.
        controller: the latest one; None before the first.
    """

    name: str
    file: str
    digest: str
    created: Time
    lines: tuple[LineRecord, ...] = ()
    copies: tuple[CopyRecord, ...] = ()
    ended: Time | None = None
    budget: float | None = None
    deadline: float | None = None
    stop_asked: float | None = None
    controller: ControllerProcess | None = None
    job_digest: str = ""

    @property
    def counts(self) -> Counter[LineState]:
        """How many lines are in each state."""
        return Counter(line.state for line in self.lines)

    @property
    def cost(self) -> float:
        """USD of all attempts and copies, as far as they are known."""
        return sum(line.cost for line in self.lines) + sum(copy.cost or 0.0 for copy in self.copies)
