"""The loop of a grid's controller: asks what is next, and has it done in threads, until every line is over.

It may end at any instant. What it has begun outside goes on, and the next controller finds all of it.

Starts pass a token bucket: so many a second on average, fewer for a while after a platform has asked for fewer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

import msgspec

from headrace.grid.controller.attempt_runner import AttemptRunner
from headrace.grid.controller.grid_copying import GridCopying
from headrace.grid.controller.line_jobs import LineJobs
from headrace.grid.controller.next_actions import LOCAL, Actions, Situation, next_actions
from headrace.grid.grid_file import Limits, Retry, RetryCause
from headrace.grid.journal.grid_record import CopyRecord, CopyState, GridRecord, LineRecord, LineState
from headrace.grid.journal.journal import Instant, Journal, nothing_happens
from headrace.grid.plan_grid import GridPlan, copy_record

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
THREADS = 8
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
        threads: for starts, looks and stops.
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
        threads: int = THREADS,
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
        self._pool = ThreadPoolExecutor(threads, "headrace-grid")
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
        return msgspec.structs.replace(self._grid, lines=tuple(self._lines.values()))

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
        record = self._journal.copy(place, region)
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
        return msgspec.structs.replace(self._grid, copies=self._read().copies)

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
