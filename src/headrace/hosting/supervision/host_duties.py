"""What every host supervisor does while it leads its hosts through a run: the processes that work for them, signals,
and what is left behind. `Supervisor` says which parts a run has.

It only watches, and whatever happens it goes on step by step (`_step`):

* a signal orders a stop, in every part (see `StopOrders`);
* the caller dies, whatever killed it (its end of the lifeline closes, or the parent changes): the job is stopped;
* a process that works beside the agents, or that the hosts need, ends unasked: the job fails;
* what an agent or another process leaves running is adopted (child subreaper) and ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable

from headrace.hosting.supervision.helper_processes import WORK, HelperProcess, RecordStoring, is_wanted
from headrace.hosting.supervision.instances import FAILURE_GRACE, Instances, Outcome, StopOrders, cause_of
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import StopJob
from headrace.processes.process_table import Idling, descendants, kill_descendants, reap, send
from headrace.runs import Cause, CauseKind, RunPaths, Status

_log = logging.getLogger(__name__)

LINGER = 1.0  # for helpers of programs that end by themselves, see headrace.agent.host.process
READY_SECONDS = 60.0  # for what works beside the agents to be ready
HELPER_GRACE = 5.0  # between SIGTERM and SIGKILL for a process whose work is not wanted any more
LAST_SYNC_SECONDS = 900.0  # for the last checkpoints to be brought to safety
ORPHANED_SECONDS = 10.0  # in place of these, when the caller is gone
END_SECONDS = 10.0  # for what is killed at the very end
POLL = 0.5
POLL_END = 0.02


class HostDuties:
    """See the module.

    Args:
        paths: the run's directory.
        caller: pid of the process that started the run; 0 when none answers for it.
        plan: the launch plan.
        instances: the hosts.
        orders: what each signal orders.
        early: called once signals are taken; returns one that has come before, None for none.
    """

    def __init__(
        self,
        paths: RunPaths,
        caller: int,
        plan: LaunchPlan,
        instances: Instances,
        orders: StopOrders,
        early: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._paths = paths
        self._caller = caller
        self._plan = plan
        self._instances = instances
        self._running = False  # an attempt: its agents were started
        self._helpers: dict[int, HelperProcess] = {}
        self._beside: list[HelperProcess] = []
        self._adopting = False  # something of ours has ended: there may be orphans
        self._orphans_since = 0.0
        self._wishes: list[StopJob] = []
        self._broken: Cause | None = None  # what worked beside the agents and ended unasked
        self._selector = selectors.DefaultSelector()
        self._wake, wake_end = socket.socketpair()
        for end in (self._wake, wake_end):
            end.setblocking(False)
        self._wake_end = wake_end
        self._selector.register(self._wake, selectors.EVENT_READ, self._signalled)
        if caller:
            self._selector.register(0, selectors.EVENT_READ, self._lifeline_moved)
        self._orders = orders
        self._early = early
        self._signals: list[int] = []
        self._record = RecordStoring(paths, self._start_helper)

    def _take_signals(self) -> None:
        """From now on signals are orders."""
        signal.set_wakeup_fd(self._wake_end.fileno(), warn_on_full_buffer=False)
        for number in self._orders:
            signal.signal(number, lambda number, _: self._signals.append(number))
        before = self._early()
        self._signals += [] if before is None else [before]
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, lambda *_: None)

    def _wake_up(self) -> None:
        """Ends a wait for something to happen. For other threads."""
        with contextlib.suppress(BlockingIOError):  # it is awake
            self._wake_end.send(b"\0")

    # --- processes beside the agents -----------------------------------------------------------------------------

    def _start_beside(self) -> Outcome | None:
        """Starts what works beside the agents. Returns how the job ends if that fails."""
        for name in ("serve_channels", "sync"):
            if not is_wanted(self._paths, name):
                continue
            helper = self._start_helper(name)
            self._beside.append(helper)
            idling, late = Idling(helper.pid), ""
            while not (helper.ready or helper.ended or self._wishes or late):
                self._step()
                late = idling.overdue(READY_SECONDS)
            if not (helper.ready or self._wishes):
                cause = Cause(CauseKind.HELPER_FAILED, f"{WORK[name]} failed: its process {late}")
                return Status.FAILED, helper.failure() if helper.ended else cause
        return self._wished() if self._wishes else None

    def _end_beside(self) -> Cause | None:
        """Ends what works beside the agents; the checkpoints get time. Returns what went wrong with it."""
        trouble: Cause | None = None
        for helper in self._beside:
            seconds = self._patience(LAST_SYNC_SECONDS) if helper.name == "sync" else HELPER_GRACE
            failed = helper.failed  # on a busy machine a program may have ended before the process that failed it
            helper.terminate()
            self._until_ended(helper, time.monotonic() + seconds, self._at_once)
            # Data that the job has read may have ended too early, or what it has saved may be lost. Before it was ready
            # no program was started.
            if failed or (helper.name == "sync" and helper.ready and helper.exit_code != 0):
                trouble = helper.failure()
        self._beside = []
        return trouble

    def _start_helper(self, name: str, more: dict[str, str] | None = None) -> HelperProcess:
        helper = HelperProcess(name, self._paths, self._selector, more)
        self._helpers[helper.pid] = helper
        return helper

    def _until_ended(self, helper: HelperProcess, limit: float, unwanted: Callable[[], bool]) -> None:
        """Waits for a process to end. When it is unwanted or its time is over, asks it to (once), then kills it."""
        kill_at = float("inf")
        while not helper.ended or self._orphans():
            self._step()
            now = time.monotonic()
            if kill_at == float("inf") and (now > limit or unwanted()):
                kill_at = now if helper.told else now + HELPER_GRACE
                if not helper.told:
                    helper.terminate()
            if now > kill_at or (kill_at < float("inf") and self._at_once()):
                helper.kill()

    def _patience(self, seconds: float) -> float:
        return min(seconds, ORPHANED_SECONDS) if any(wish.failed for wish in self._wishes) else seconds

    def _helper_ended(self, helper: HelperProcess, status: int) -> None:
        helper.finish(status)
        self._adopting = True
        if helper in self._beside and not helper.told and self._running:
            self._break(helper.failure())

    def _break(self, cause: Cause) -> None:
        """Something that the agents need has ended."""
        self._broken = self._broken or cause
        if self._running:
            grace = min(FAILURE_GRACE, self._plan.stop_grace)
            self._instances.stop(StopJob(self._broken.kind.value, self._broken.reason, failed=True, grace=grace))

    # --- what happens --------------------------------------------------------------------------------------------

    def _step(self) -> None:
        ending = self._orphans_since > 0 or (self._running and self._instances.decided)
        for key, _ in self._selector.select(POLL_END if ending else POLL):
            key.data()
        while self._signals:
            self._stop(self._orders[self._signals.pop(0)](bool(self._wishes)))
        if self._orphaned():
            self._caller_died()
        for pid, status in reap():
            if pid in self._helpers:
                self._helper_ended(self._helpers.pop(pid), status)
                continue
            self._adopting = self._adopting or pid in self._instances.pids
            broken = self._instances.ended(pid, status)
            if broken is not None:
                self._break(broken)
        if self._adopting:
            self._end_orphans()
        self._instances.look_after()
        self._record.look_after()

    def _signalled(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)

    def _lifeline_moved(self) -> None:
        if not os.read(0, 4096):
            self._selector.unregister(0)
            self._caller_died()

    def _orphaned(self) -> bool:
        return self._caller != 0 and os.getppid() != self._caller

    def _caller_died(self) -> None:
        caller, self._caller = self._caller, 0
        if caller:
            grace = min(FAILURE_GRACE, self._plan.stop_grace)
            died = f"the process that started the run (pid {caller}) died"
            self._stop(StopJob(CauseKind.CALLER_DIED.value, died, failed=True, grace=grace))

    def _stop(self, wish: StopJob) -> None:
        _log.info("asked to stop: %s", wish.reason)
        self._wishes.append(wish)
        if not wish.failed and len(self._wishes) == 1:
            self._stop_begins()
        if self._running:
            self._instances.stop(wish)

    def _stop_begins(self) -> None:
        """A person, or a limit, stops the job."""

    def _wished(self) -> Outcome:
        first = self._wishes[0]
        if first.infrastructure:
            first = self._instances.explained(first)
        return (Status.FAILED if first.failed else Status.STOPPED), cause_of(first)

    def _at_once(self) -> bool:
        return any(wish.grace == 0 for wish in self._wishes)

    # --- what is left --------------------------------------------------------------------------------------------

    def _ours(self) -> list[int]:
        return [*self._instances.pids, *self._helpers, *self._instances.others]

    def _orphans(self) -> bool:
        return self._adopting and bool(descendants(os.getpid(), without=self._ours()))

    def _end_orphans(self) -> None:
        """Ends what agents have left; helpers that end by themselves get a moment."""
        orphans = descendants(os.getpid(), without=self._ours())
        now = time.monotonic()
        if not orphans:
            self._orphans_since = 0.0
        elif not self._orphans_since:
            self._orphans_since = now
        elif now - self._orphans_since > LINGER:
            for orphan in orphans:
                send(orphan, signal.SIGKILL)

    def _end_everything(self) -> None:
        """Kills all that is left. After an orderly end there is nothing."""

        def ended(pid: int, status: int) -> None:
            if pid in self._instances.pids:
                self._instances.ended(pid, status)
            elif pid in self._helpers:
                self._helpers.pop(pid).finish(status)

        kill_descendants(END_SECONDS, ended)
