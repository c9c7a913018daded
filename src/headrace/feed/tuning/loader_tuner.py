"""Tunes one loader while it runs: measures, asks the rules, and has its session follow.

It is called in the training thread, between two steps, and does nothing but twice a second. Without a job and without
``num_workers="auto"`` a loader has none.

What the host has left for more executors is asked of the kernel. A control group may grant less than the machine has,
so both are asked, and memory that can be taken back at once (the cache of files) is free. How long executors could have
run and did not, because others had the cores or their group was throttled, tells contention from waits for a disk or a
network, which cost no core.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import time
import traceback
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from headrace.control_group import control_groups, usable_cores
from headrace.feed.client.local_pool import LocalPool
from headrace.feed.client.policy import SessionStats
from headrace.feed.client.session import Session
from headrace.feed.metrics.step_meter import StepMeter
from headrace.feed.tuning.executor_rule import Auto, Choice, ExecutorRule, Host, Window, desired_hosts
from headrace.feed.wire.remote_errors import warn_user
from headrace.feed_metrics import Because

_log = logging.getLogger(__name__)

SAMPLE_SECONDS = 0.5  # of one session: a pass may be over soon
WINDOW_SECONDS = 2.0  # of steps, after which the number is judged: less is noise
WARM_SECONDS = 0.2  # of a session, in which its workers start: not measured
UNMEASURED = 10  # sessions in a row that were over before anything was measured, after which the user is told
CHANGES = 64  # that are remembered
MOST_AHEAD = 4096  # batches
AHEAD_SHARE = 2  # of the memory that batches on their way may take, 1/n
MEMORY_SECONDS = 5.0  # the kernel walks a process's page tables to tell its proportional set size
PROBED = 4  # executors whose size is looked at
_NO_LIMIT = 1 << 60  # version 1 of control groups has a huge number for no limit


class HostUse:
    """What the host has left, and how long executors had to wait for its cores.

    Args:
        groups: directories of the control groups that may limit the memory; None for this process's.
    """

    def __init__(self, groups: Iterable[Path] | None = None) -> None:
        self._groups = list(control_groups(controller="memory") if groups is None else groups)
        self._cores = usable_cores()
        self._own = (time.monotonic(), time.process_time())
        self._delays: dict[int, float] = {}
        self._delayed = 0.0
        self._sized = 0.0
        self._size = self._free = self._memory = 0

    def look(self, pids: Iterable[int], slabs: int) -> Host:
        """Returns what the host has now, and the cores that this process has used since the last look.

        Args:
            pids: of the executors.
            slabs: bytes of the batches on their way.
        """
        if time.monotonic() >= self._sized + MEMORY_SECONDS or not self._size:
            self._sized = time.monotonic()
            self._size = max((proportional_bytes(pid) for pid in list(pids)[-PROBED:]), default=0) or self._size
            self._free, self._memory = memory_left(self._groups)
        before, self._own = self._own, (time.monotonic(), time.process_time())
        seconds, used = (now - then for now, then in zip(self._own, before, strict=True))
        trainer = used / max(seconds, 1e-6)
        return Host(self._cores, self._size, self._free, self._memory, slabs, trainer)

    def delayed(self, pids: Iterable[int]) -> float:
        """Returns the seconds so far, from call to call, in which these processes could have run, and had no core."""
        before, self._delays = self._delays, {pid: run_delay(pid) for pid in pids}
        self._delayed += sum(now - before[pid] for pid, now in self._delays.items() if pid in before)
        return self._delayed


def memory_left(groups: Iterable[Path]) -> tuple[int, int]:
    """Returns the bytes that are free, and those that may be used in all, in the group or machine with the least left.

    Args:
        groups: directories of control groups.
    """
    machine = psutil.virtual_memory()
    found = [(machine.available, machine.total)]
    for directory in groups:
        limit, used = (
            _first(directory, "memory.max", "memory.limit_in_bytes"),
            _first(directory, "memory.current", "memory.usage_in_bytes"),
        )
        if limit is not None and used is not None and limit < _NO_LIMIT:
            found.append((max(0, min(limit, limit - used + _cache(directory))), limit))
    return min(found)


def run_delay(pid: int) -> float:
    """Returns the seconds that a process's main thread has waited for a core; 0 when it is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def proportional_bytes(pid: int) -> int:
    """Returns the proportional set size of a process: what it shares with others counts in parts. 0 when it is gone."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
        return int(fields[fields.index("Pss:") + 1]) << 10
    return 0


def _first(directory: Path, *names: str) -> int | None:
    for name in names:
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            return int((directory / name).read_text())
    return None


def _cache(directory: Path) -> int:
    """Returns the bytes of files that the kernel can take back from a group."""
    with contextlib.suppress(OSError, ValueError):
        lines = (directory / "memory.stat").read_text().splitlines()
        fields = {name: int(value) for name, value in (line.split() for line in lines)}
        return fields.get("total_inactive_file", fields.get("inactive_file", 0))
    return 0


class Change(NamedTuple):
    """From `before` to `executors`, `seconds` after the loader was made, and why: the figures are for people."""

    seconds: float
    before: int
    executors: int
    because: Because
    figures: str


class LoaderTuner:
    """See the module.

    Args:
        auto: limits, when the loader chooses the number of its workers; None when others decide that.
        meter: measures the training loop.
        stats: what the sessions count.
        memory: limit of the slabs, bytes.
        fixed_ahead: whether the user said how many batches are made ahead.
        clock: monotonic seconds.

    Attributes:
        ranks: how many there are.
        needed: executors that this rank would keep busy if it never waited; None while it is not known.
        desired: hosts of data workers that would do for all ranks; None for local workers, and while it is not known.
        ahead: batches that may be on their way; 0 for what a window has without tuning.
        changes: of the number of executors, the latest ones.
    """

    def __init__(
        self,
        auto: Auto | None,
        meter: StepMeter,
        stats: SessionStats,
        memory: int,
        *,
        fixed_ahead: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rule = ExecutorRule(auto) if auto is not None else None
        self._meter, self._stats, self._memory = meter, stats, memory
        self.ranks = 1
        self._fixed_ahead = fixed_ahead
        self._clock = clock
        self._begun = self._due = clock()
        self._host: HostUse | None = None
        self._session: weakref.ref[Session] | None = None
        self._warm = False  # whether the session has been at work for a while
        self._unmeasured = 0  # sessions in a row; negative: the user was told
        self._before = Window()  # sums when the sample under way began
        self._window = Window()
        self.needed: float | None = None
        self.desired: int | None = None
        self.ahead = 0
        self.changes: collections.deque[Change] = collections.deque(maxlen=CHANGES)
        self._stopped = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_session": None, "_host": None}

    @property
    def choice(self) -> Choice | None:
        """How many executors there are to be; None when others decide that."""
        return self._rule.choice if self._rule is not None else None

    def look(self, session: Session) -> None:
        """Tunes a session. One that fails does so no more: training goes on with the workers that there are."""
        if self._stopped:
            return
        try:
            self._look(session)
        except Exception as error:  # noqa: BLE001 - whatever it is, batches can be made without it
            self._stopped = True
            _log.warning(
                "the tuner of this loader has failed:\n%s", traceback.format_exc()
            )  # as text: it holds nothing
            warn_user(
                f"the number of workers is not tuned any more, training goes on with those that there are: "
                f"{type(error).__name__}: {error}",
                UserWarning,
            )

    def _look(self, session: Session) -> None:
        now = self._clock()
        if self._session is None or self._session() is not session:  # it has workers of its own
            self._begin(session, now)
        if now < self._due:
            return
        self._due = now + SAMPLE_SECONDS
        before, sums = self._before, self._sums(session)
        if not self._warm:
            self._warm, self._before = sums.steps > before.steps, sums
            self._stats.latencies.clear()
            return
        sample = sums.plus(before, -1)
        if not sample.steps or sample.step <= 0 or sample.rows <= 0:
            return
        self._before, self._unmeasured = sums, min(0, self._unmeasured)
        self._look_ahead(session, sample)
        window = self._window = self._window.plus(sample) if self._window.steps else sample
        if window.step < WINDOW_SECONDS:
            return
        self._window, self.needed = Window(), window.needed
        link = self._count_hosts(session, window)
        self._meter.demand(self.needed, self.desired, link)
        pool = session.worker_pool
        if self._rule is None or self._host is None or not isinstance(pool, LocalPool):
            return
        executors = self._rule.choice.executors
        choice = self._rule.take(window, self._host.look(pool.pids(), session.slab_bytes), now)
        pool.tuned(choice.because, choice.figures)
        if choice.executors != executors:
            self.changes.append(Change(now - self._begun, executors, *choice))
            pool.resize(choice.executors)

    def _begin(self, session: Session, now: float) -> None:
        """Another pass has other workers. What was measured with as many workers still counts."""
        self._session = weakref.ref(session)
        self._warm, self._due = False, now + WARM_SECONDS
        self._before, session.ahead = self._sums(session), self.ahead
        if self._rule is None:
            return
        if self._unmeasured >= UNMEASURED:
            self._unmeasured = -1
            warn_user(
                f'num_workers="auto" could measure nothing in {UNMEASURED} passes: each was over, and its workers '
                "gone, within a few batches or a second; persistent_workers=True keeps workers from pass to pass",
                UserWarning,
            )
        elif self._unmeasured >= 0:
            self._unmeasured += 1

    def _sums(self, session: Session) -> Window:
        totals, made, delayed, pool = self._meter.totals, list(self._stats.hosts.values()), 0.0, session.worker_pool
        rows, work, cpu = (sum(each[name] for each in made) for name in ("rows", "seconds", "cpu_seconds"))
        if self._rule is not None and isinstance(pool, LocalPool):
            self._host = self._host or HostUse()
            delayed = self._host.delayed(pool.pids())
        return Window(
            sum(session.serving), totals.steps, totals.step, session.blocked, totals.samples, totals.bytes, rows, work,
            cpu, delayed,
        )  # fmt: skip

    def _count_hosts(self, session: Session, window: Window) -> float | None:
        """Works out how many hosts would do. Returns the share of the time that their links were busy."""
        serving, pool = session.serving, session.worker_pool
        if isinstance(pool, LocalPool) or not serving:
            return None
        names = {worker.name for worker in pool.workers() if worker.ready}
        links = [made["link"] for name, made in self._stats.hosts.items() if name in names]
        link, executors = sum(links) / max(1, len(links)), sum(serving) / len(serving)
        self.desired = desired_hosts(window.needed * self.ranks, executors, pool.hosts, window.stall, link)
        return link

    def _look_ahead(self, session: Session, done: Window) -> None:
        """As many batches are on their way as the trainer takes while a slow slice is made, and one more."""
        latencies = sorted(self._stats.latencies)
        if self._fixed_ahead or self._rule is None or not latencies:
            return
        slow = latencies[math.ceil(0.99 * len(latencies)) - 1]
        most = min(MOST_AHEAD, max(2, int(self._memory / AHEAD_SHARE * done.steps / max(1, done.bytes))))
        self.ahead = session.ahead = min(most, math.ceil(slow * done.steps / done.step) + 1)
