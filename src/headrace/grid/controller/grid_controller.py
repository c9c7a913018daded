"""The loop of a grid's controller: asks what is next (`next_actions`, pure), and has it done in threads, until every
line is over; it makes the copies that lines wait for, and writes into the journal how far they have come.

It may end at any instant. What it has begun outside goes on, and the next controller finds all of it.

Starts pass a token bucket: so many a second on average, fewer for a while after a platform has asked for fewer.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from headrace.grid.controller.attempt_runner import AttemptRunner
from headrace.grid.controller.line_jobs import LineJobs
from headrace.grid.copied_object import CopyFailed
from headrace.grid.copy_action import CopyProgress, plan_grid_copy
from headrace.grid.grid_file import Limits, Retry, RetryCause
from headrace.grid.grid_record import CopyRecord, CopyState, GridRecord, LineRecord, LineState
from headrace.grid.journal import Instant, Journal, nothing_happens
from headrace.grid.plan_grid import GridPlan, copy_record

PROGRESS_SECONDS = 2.0
"""Between two writes of how far a copy has come."""


@dataclass(eq=False)
class GridCopying:
    """Copies for one grid. Its methods may be called by several threads.

    Attributes:
        journal: of the grid.
        jobs: of its lines.
        owner: who pays: the grid, and when it was started.
        changed: is told of each copy that has changed.
    """

    journal: Journal
    jobs: LineJobs
    owner: str
    changed: Callable[[CopyRecord], object]

    def __post_init__(self) -> None:
        self._stop = threading.Event()

    def pause(self, paused: bool) -> None:
        """Ends all copies, or lets them begin again. What is there stays, and is not copied again."""
        if paused:
            self._stop.set()
        else:
            self._stop.clear()

    def copy(self, record: CopyRecord, tries: int, delay: float) -> None:
        """Makes a copy, as often as it says.

        Args:
            record: as the journal has it.
            tries: how often a failure that may pass is followed by another try.
            delay: seconds before that; they double.

        Raises:
            StorageError: the journal cannot be written.
        """
        record = replace(record, state=CopyState.RUNNING, started=record.started or time.time())
        self._note(record)
        for number in range(tries + 1):
            try:
                self._note(self._made(record))
                return
            except CopyFailed as error:
                again = error.passing and number < tries and not self._stop.wait(delay * 2**number)
                if self._stop.is_set():
                    return  # it goes on when the grid does
                if not again:
                    now = time.time()
                    self._note(replace(record, state=CopyState.FAILED, ended=now, reason=error.message))
                    return

    def _made(self, record: CopyRecord) -> CopyRecord:
        """Makes a copy, and returns its record."""
        file, where = self.jobs.file, (record.place, record.source, record.region)
        with plan_grid_copy(*where, file.placement, self.jobs.template, file.in_regions, self.owner) as action:
            there = replace(record, target=action.target, bytes_total=action.bytes)
            told = [time.monotonic()]

            def progress(news: CopyProgress) -> None:
                if time.monotonic() - told[0] >= PROGRESS_SECONDS:
                    told[0] = time.monotonic()
                    self._note(replace(there, bytes_done=news.bytes_done))

            result = action.run(self._stop, progress)
        return replace(there, state=CopyState.DONE, bytes_done=action.bytes, ended=time.time(), cost=result.cost)

    def _note(self, record: CopyRecord) -> None:
        self.journal.copied(record)
        self.changed(record)


COPIES_AT_ONCE = 2
BY_REQUEST = "stopped on request"
BY_DEADLINE = "the grid's deadline has passed"
BY_BUDGET = "the grid's budget is used up"
LOCAL = "local"


@dataclass(frozen=True)
class Held:
    """A line that could start and for which a limit leaves no room.

    Attributes:
        key: of the line.
        limit: key of the grid's file.
        words: what the limit is.
    """

    key: str
    limit: str
    words: str


@dataclass(frozen=True)
class Actions:
    """What is done next.

    Attributes:
        start: keys of lines of which the next attempt is started, in this order.
        held: the first line that a limit holds back.
        resolve: keys of lines whose attempt was written down by a controller that was killed: it is looked for, and
            started if it is not there.
        copy: copies that begin, as (place, region).
        stop: keys of lines whose run is asked to stop.
        close: lines that will not be started: key to state and reason.
        stopping: why everything is being stopped; empty when it is not.
        stopped: keys of lines that are to stop, each with the reason.
        over: every line is.
    """

    start: tuple[str, ...] = ()
    held: Held | None = None
    resolve: tuple[str, ...] = ()
    copy: tuple[tuple[str, str], ...] = ()
    stop: tuple[str, ...] = ()
    close: Mapping[str, tuple[LineState, str]] = field(default_factory=dict)
    stopping: str = ""
    stopped: Mapping[str, str] = field(default_factory=dict)
    over: bool = False


@dataclass(frozen=True)
class Situation:
    """What is decided by.

    Attributes:
        grid: as the journal has it.
        now: seconds since the epoch.
        spent: USD so far, of what runs too.
        hosts: of each line's job, by key.
        busy: keys of lines, and (place, region) of copies, that this process is doing something with already.
        local_hosts: hosts of lines that may run at once on this machine.
    """

    grid: GridRecord
    now: float
    spent: float = 0.0
    hosts: Mapping[str, int] = field(default_factory=dict)
    busy: frozenset[object] = frozenset()
    local_hosts: int = 1


def next_actions(situation: Situation, limits: Limits) -> Actions:
    """Returns what is done next. Rates are not looked at: `start` has all that may run."""
    grid = situation.grid
    if all(line.state.over for line in grid.lines):
        return Actions(over=True)
    why = _why_stop(situation)
    idle = [line for line in grid.lines if line.key not in situation.busy]
    unknown = tuple(line.key for line in idle if line.state is LineState.STARTING)
    stopped = {
        line.key: why or str(line.early_stop or BY_REQUEST)
        for line in grid.lines
        if why or line.early_stop is not None or line.stop_asked is not None
    }
    stop = tuple(line.key for line in idle if line.state is LineState.RUNNING and line.key in stopped)
    close = {
        line.key: (LineState.STOPPED, stopped[line.key])
        for line in idle
        if line.state is LineState.WAITING and line.key in stopped
    }
    if why:
        return Actions(resolve=unknown, stop=stop, close=close, stopping=why, stopped=stopped)
    copies = {(copy.place, copy.region): copy for copy in grid.copies}
    waiting = [line for line in idle if line.state is LineState.WAITING and line.key not in close]
    for line in waiting:
        failed = [copies[each] for each in line.waits_for if copies[each].state is CopyState.FAILED]
        if failed:
            close[line.key] = (LineState.FAILED, f"{failed[0].place} could not be copied: {failed[0].reason}")
    ready = [
        line
        for line in waiting
        if line.key not in close
        and line.not_before <= situation.now
        and all(copies[each].state is CopyState.DONE for each in line.waits_for)
    ]
    start, held = _within(situation, ready, limits)
    return Actions(
        start=start,
        held=held,
        resolve=unknown,
        copy=_copies(situation, waiting),
        stop=stop,
        close=close,
        stopped=stopped,
    )


def _why_stop(situation: Situation) -> str:
    grid = situation.grid
    if grid.stop_asked is not None:
        return BY_REQUEST
    if grid.deadline is not None and situation.now >= grid.deadline:
        return BY_DEADLINE
    return BY_BUDGET if grid.budget is not None and situation.spent >= grid.budget else ""


def _within(situation: Situation, ready: list[LineRecord], limits: Limits) -> tuple[tuple[str, ...], Held | None]:
    """Returns the lines of these that the limits leave room for, and the first one that they leave none for."""
    going = [line for line in situation.grid.lines if line.state in (LineState.STARTING, LineState.RUNNING)]
    going += [line for line in situation.grid.lines if line.state is LineState.WAITING and line.key in situation.busy]
    total = len(going)
    regions = Counter(line.region_now for line in going)
    local = sum(situation.hosts.get(line.key, 1) for line in going if line.engine == LOCAL)
    found: list[str] = []
    held: list[Held] = []
    for line in ready:
        hosts = situation.hosts.get(line.key, 1) if line.engine == LOCAL else 0
        if limits.parallel is not None and total >= limits.parallel:
            held.append(Held(line.key, "parallel", f"limits.parallel is {limits.parallel}"))
            break
        if regions[line.region] >= limits.per_region.get(line.region, total + 1):
            words = f"limits.per_region of {line.region} is {limits.per_region[line.region]}"
            held.append(Held(line.key, f"per_region.{line.region}", words))
            continue
        if hosts and local and local + hosts > situation.local_hosts:
            why = "" if limits.local_hosts else ", one a CPU of this machine"
            allowed = f"limits.local_hosts is {situation.local_hosts}{why}"
            words = f"{allowed}: {local} hosts run here, and this line has {hosts}"
            held.append(Held(line.key, "local_hosts", words))
            continue
        found.append(line.key)
        total += 1
        regions[line.region] += 1
        local += hosts
    return tuple(found), held[0] if held else None


def _copies(situation: Situation, waiting: list[LineRecord]) -> tuple[tuple[str, str], ...]:
    """Returns the copies that begin now: those for which lines wait, in the order of the lines."""
    open_copies = {
        (copy.place, copy.region)
        for copy in situation.grid.copies
        if copy.state in (CopyState.WAITING, CopyState.RUNNING)
    }
    wanted = dict.fromkeys(each for line in waiting for each in line.waits_for if each in open_copies)
    going = sum(each in situation.busy for each in wanted)
    free = [each for each in wanted if each not in situation.busy]
    return tuple(free[: max(0, COPIES_AT_ONCE - going)])


BURST_SECONDS = 2.0
"""What was not used is kept for so long."""
SLOWEST = 1 / 60
"""Starts a second, however often a platform asks for fewer."""


@dataclass
class RateLimit:
    """See the module.

    Args:
        rate: starts a second.
        now: seconds of a clock that only goes on.
    """

    rate: float
    now: float

    def __post_init__(self) -> None:
        self._full_rate = self.rate
        self._burst = max(1.0, self.rate * BURST_SECONDS)
        self._tokens = self._burst

    def take(self, now: float) -> bool:
        """Takes a token if there is one. Returns whether there was."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self.now) * self.rate)
        self.now = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def throttled(self) -> None:
        """The platform asked for fewer: half as many from now on, and none at once."""
        self.rate = max(SLOWEST, self.rate / 2)
        self._tokens = 0.0

    def went_well(self) -> None:
        """A start went well: a few more from now on, up to what was asked for."""
        self.rate = min(self._full_rate, self.rate * 1.1 + SLOWEST)


TICK = 0.2
TOGETHER = 0.02  # what ends within this time is taken together: a step looks at every line
LOOK_LOCAL, LOOK_PLATFORM = 0.5, 3.0  # seconds between two looks at one run
LOOKS_PER_SECOND = 5.0  # at runs of one engine in one region
STOP_AGAIN = 15.0
COST_SECONDS = 10.0
_THREADS = 8  # for starts, looks and stops
Told = Callable[[LineRecord, str], object]
"""Is told of a line that has changed, and of trouble with it in words."""


class GridController:
    """Controls one grid; the caller holds its lease. Use it in one thread.

    Args:
        journal: of the grid, which has it already.
        jobs: of its lines; None for a controller that only stops.
        plan: where lines may run; None for a controller that only stops.
        told: of each line that has changed.
        told_copy: of each copy that has changed.
        instant: told before and after every call outside.
    """

    def __init__(
        self,
        journal: Journal,
        jobs: LineJobs | None,
        plan: GridPlan | None,
        *,
        told: Told,
        told_copy: Callable[[CopyRecord], object],
        instant: Instant = nothing_happens,
    ) -> None:
        self._journal = journal
        self._jobs = jobs
        self._told = told
        placed = zip(plan.lines, plan.placed, strict=True) if plan else ()
        self._placed = {line.key: where for line, where in placed}
        self._limits = jobs.file.limits if jobs else Limits()
        self._retry = jobs.file.retry if jobs else Retry(attempts=0)
        self._runner = AttemptRunner(
            journal, jobs, self._retry, self._regions_of, self._copies_in, instant, self._trouble
        )
        self._grid = self._read()
        self._lines = {line.key: line for line in self._grid.lines}
        owner = f"{self._grid.name} {self._grid.created:.3f}"
        self._copying = None if jobs is None else GridCopying(journal, jobs, owner, told_copy)
        self._pool = ThreadPoolExecutor(_THREADS, "headrace-grid")
        self._copiers = ThreadPoolExecutor(2, "headrace-grid-copy")
        self._futures: dict[Future[object], Hashable] = {}
        self._due: dict[str, float] = {}
        self._cost_due: dict[str, float] = {}
        self._stopping = ""
        self._held: set[str] = set()
        self._stops: dict[str, float] = {}
        self._rates: dict[tuple[str, str, str], RateLimit] = {}
        self._running_cost: dict[str, float] = {}
        self._hosts = {key: sum(where.demand.hosts.values()) for key, where in self._placed.items()}

    def close(self) -> None:
        """Waits for what is being started; ends copies. Runs go on."""
        if self._copying is not None:
            self._copying.pause(True)
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._copiers.shutdown(wait=True, cancel_futures=True)
        self._runner.release()

    @property
    def grid(self) -> GridRecord:
        """The grid as it is now."""
        return replace(self._grid, lines=tuple(self._lines.values()))

    @property
    def cost(self) -> float:
        """USD so far, as far as they are known: of what runs, what it had cost some seconds ago."""
        ended = sum(line.cost for line in self._lines.values()) + sum(copy.cost or 0.0 for copy in self._grid.copies)
        return ended + sum(self._running_cost.copy().values())

    def ask_stop(self) -> None:
        """Has the grid stopped: `run` then returns when all that runs has ended."""
        self._journal.ask_stop(time.time())
        self._grid = self._read()

    def run(self) -> GridRecord:
        """Works until every line is over. It may be called again after an exception, such as KeyboardInterrupt.

        Raises:
            StorageError: the journal cannot be read or written. Runs go on, and the next controller finds them.
        """
        while not self.step():
            if self._futures:
                wait(self._futures, timeout=TICK, return_when=FIRST_COMPLETED)
                time.sleep(min(TICK, TOGETHER))
            else:
                time.sleep(TICK)
        return self.grid

    def step(self) -> bool:
        """Does what is to be done now. Returns whether the grid is over."""
        self._collect()
        if self._journal.changed_elsewhere():
            self._grid = self._read()
            self._lines = {line.key: line for line in self._grid.lines}
        actions = next_actions(self._situation(), self._limits)
        if self._copying is not None:
            self._copying.pause(bool(actions.stopping) or actions.over)
        if actions.over:
            if self._futures:
                return False
            if self._grid.ended is None:
                self._journal.finish(time.time())
                self._grid = self._read()
            return True
        self._act(actions)
        return False

    def _act(self, actions: Actions) -> None:
        now = time.monotonic()
        for key in actions.stop:  # first: what runs costs money
            if now - self._stops.get(key, -STOP_AGAIN) >= STOP_AGAIN:
                self._stops[key] = now
                self._do(key, partial(self._runner.stop, self._lines[key]))
                self._due[key] = 0.0
        if actions.close:
            self._journal.close_lines(actions.close)
            for key in actions.close:
                self._changed(key)
        if actions.stopping != self._stopping:
            self._stopping = actions.stopping
            if actions.stopping:
                self._journal.note(time.time(), "", f"{actions.stopping}: nothing more is started, runs are stopped")
        for key in actions.resolve:
            line = self._lines[key]
            self._do(key, partial(self._runner.resolve, line, actions.stopped.get(key, "")))
        for key in actions.start:
            line = self._lines[key]
            if self._rate("start", line.engine, line.region, self._limits.starts_per_second).take(now):
                self._do(key, partial(self._runner.start, line))
        if actions.held is not None and actions.held.limit not in self._held:
            self._held.add(actions.held.limit)
            words = f"it and others wait until lines that run are over, because {actions.held.words}"
            self._trouble(actions.held.key, words)
        for place, region in actions.copy:
            self._copy(place, region)
        self._look(now, actions.stopped)

    def _look(self, now: float, stopped: Mapping[str, str]) -> None:
        """Has runs looked at for which it is time; of those that are to stop it is known why."""
        busy = set(self._futures.values())
        for key, line in self._lines.items():
            if line.state is not LineState.RUNNING or key in busy or self._due.get(key, 0.0) > now:
                continue
            attempt = line.attempts[-1]
            local = attempt.engine == LOCAL
            if not local and not self._rate("look", attempt.engine, attempt.region, LOOKS_PER_SECOND).take(now):
                continue
            self._due[key] = now + (LOOK_LOCAL if local else LOOK_PLATFORM)
            costs = self._grid.budget is not None or self._cost_due.get(key, 0.0) <= now
            if costs:
                self._cost_due[key] = now + COST_SECONDS
            self._do(key, partial(self._looked, line, stopped.get(key, ""), costs))

    def _looked(self, line: LineRecord, stopping: str, costs: bool) -> None:
        found = self._runner.look(line, stopping, costs)
        if found is not None:
            self._running_cost[line.key] = found

    def _copy(self, place: str, region: str) -> None:
        assert self._copying is not None
        record = self._journal.copies()[place, region]
        copying, retry = self._copying, self._retry
        future = self._copiers.submit(copying.copy, record, retry.attempts, retry.delay)
        self._futures[future] = (place, region)  # type: ignore[index]

    def _do(self, key: str, work: Callable[[], object]) -> None:
        self._futures[self._pool.submit(work)] = key

    def _collect(self) -> None:
        """Takes the results of what was done; an error of the journal, or a defect, is raised here."""
        for future in [each for each in self._futures if each.done()]:
            of = self._futures.pop(future)
            result = future.result()
            if isinstance(of, tuple):
                self._grid = self._read_copies()
                continue
            assert isinstance(of, str)
            before = self._lines[of]
            self._changed(of)
            after = self._lines[of]
            if after.state is not LineState.RUNNING:
                self._running_cost.pop(of, None)
            if before.state is LineState.WAITING or after.state is LineState.WAITING:
                rate = self._rate("start", before.engine, before.region, self._limits.starts_per_second)
                if result is RetryCause.THROTTLED:
                    rate.throttled()
                elif after.state is LineState.RUNNING:
                    rate.went_well()
            if before.region != after.region:
                self._grid = self._read_copies()

    def _changed(self, key: str) -> None:
        before = self._lines[key]
        line = self._journal.line(key, before.index)
        self._lines[key] = line
        if line != before:
            self._told(line, "")

    def _trouble(self, key: str, words: str) -> None:
        self._journal.note(time.time(), key, words)
        self._told(self._lines[key], words)

    def _situation(self) -> Situation:
        return Situation(
            grid=self.grid,
            now=time.time(),
            spent=self.cost,
            hosts=self._hosts,
            busy=frozenset(self._futures.values()),
            local_hosts=self._limits.local_hosts or len(os.sched_getaffinity(0)),
        )

    def _read(self) -> GridRecord:
        found = self._journal.read()
        assert found is not None, "whoever makes a controller has begun the grid"
        return found

    def _read_copies(self) -> GridRecord:
        return replace(self._grid, copies=tuple(self._journal.copies().values()))

    def _copies_in(self, region: str) -> Mapping[str, str]:
        return {
            copy.place: copy.target
            for copy in self._grid.copies
            if copy.region == region and copy.state is CopyState.DONE
        }

    def _regions_of(self, key: str) -> Sequence[tuple[str, tuple[CopyRecord, ...]]]:
        placed = self._placed.get(key)
        return tuple(
            (each.region, tuple(map(copy_record, each.copies)))
            for each in (placed.possible if placed else ())
            if self._grid.budget is None or each.run_cost is not None  # what it costs there could not be watched
        )

    def _rate(self, what: str, engine: str, region: str, per_second: float) -> RateLimit:
        return self._rates.setdefault((what, engine, region), RateLimit(per_second, time.monotonic()))
