"""What a grid's controller does next: a pure function of the journal's state, the clock and the limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.grid.grid_file import Limits
from headrace.grid.journal.grid_record import CopyState, GridRecord, LineRecord, LineState

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
