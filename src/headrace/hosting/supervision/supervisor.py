"""Stands between the caller and the agents.

    python -m headrace.hosting.supervision.supervisor RUN_DIR CALLER_PID PROVIDER

The provider brings the hosts that it prepares, runs and finishes (see `instances`): all of a job, or some. It leads
them through the parts of a run, each only when there is something to do (see `helper_processes`):

    Starting      installs the requirements
    Downloading   fills the channels, brings earlier checkpoints
    Training      one agent a host; beside them what serves channels and keeps checkpoints; again after a failure
                  (Restarting) when the job wants that, with all checkpoints on every host
    Uploading     collects model and output

and only watches meanwhile:

* the caller dies, whatever killed it (its end of the lifeline closes, or the parent changes): the job is stopped. The
  caller of a detached run is its keeper;
* SIGTERM or SIGINT: the job is stopped in order; the second one: at once. That holds in every part;
* a process that works beside the agents, or that the hosts need, ends unasked: the job fails;
* what an agent or another process leaves running is adopted (child subreaper) and ended.

At the end it removes the temporary files and writes the last event, `run_finished`. Its status is Completed only when
the coordinator's is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.hosting.helpers.artefacts import has_artefacts
from headrace.hosting.supervision.attempts import clear, failure_reason, is_tried_again
from headrace.hosting.supervision.cleanup import remove_leftovers
from headrace.hosting.supervision.helper_processes import JOB_STATUS, WORK, HelperProcess, is_wanted
from headrace.hosting.supervision.instances import FAILURE_GRACE, Outcome, cause_of, find_provider
from headrace.hosting.supervision.record_storing import BY_STOP, RecordStoring, store_rest
from headrace.hosting.supervision.scratch_dir import remove_scratch
from headrace.hosting.supervision.stop_orders import OF_A_PERSON, StopOrders
from headrace.hosting.supervision.used_budget import Spent
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.lifeline import ATTEMPT, StopJob
from headrace.log_setup import VARIABLE, log_to_stderr
from headrace.processes.bootstrap import become_subreaper
from headrace.processes.process_table import descendants, kill_descendants, reap, send
from headrace.runs import Cause, CauseKind, EventWriter, RunPaths, Status, adopt, read_plan
from headrace.runs.events import AttemptStarted, InstancesStarted, RunFinished, SecondaryStatus, StatusChanged

_log = logging.getLogger("headrace.hosting.supervision.supervisor")  # this module runs as __main__

ENGINE = "engine"
LINGER = 1.0  # for helpers of programs that end by themselves, see headrace.agent.host.kill_leftovers
READY_SECONDS = 60.0  # for what works beside the agents to be ready
HELPER_GRACE = 5.0  # between SIGTERM and SIGKILL for a process whose work is not wanted any more
LAST_SYNC_SECONDS = 900.0  # for the last checkpoints to be brought to safety
COLLECT_SECONDS = 3600.0
RECORD_SECONDS = 120.0  # for the end of the record to be stored
ORPHANED_SECONDS = 10.0  # in place of these, when the caller is gone
END_SECONDS = 10.0  # for what is killed at the very end
POLL = 0.5
POLL_END = 0.02
RESTORE = ("restore", SecondaryStatus.DOWNLOADING, "Downloading earlier checkpoints")
BEFORE = (
    ("install", SecondaryStatus.STARTING, "Installing the requirements"),
    ("stage", SecondaryStatus.DOWNLOADING, "Downloading the training data"),
    RESTORE,
)


class Supervisor:
    """See the module.

    Args:
        paths: the run's directory.
        caller: pid of the process that started the run; 0 when none answers for it.
        provider: name of the module that brings the instances.
        orders: what each signal orders; by default SIGTERM and SIGINT are a person's wish.
        early: called once signals are taken; returns one that has come before, None for none.
    """

    def __init__(
        self,
        paths: RunPaths,
        caller: int,
        provider: str,
        orders: StopOrders | None = None,
        early: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._paths = paths
        self._caller = caller
        self._plan = read_plan(paths, LaunchPlan)
        self._events = EventWriter(paths.events(ENGINE))
        self._instances = find_provider(provider).open_instances(self._plan, paths, self._events)
        self._running = False  # an attempt: its agents were started
        self._helpers: dict[int, HelperProcess] = {}
        self._beside: list[HelperProcess] = []
        self._adopting = False  # something of ours has ended: there may be orphans
        self._orphans_since = 0.0
        self._wishes: list[StopJob] = []
        self._broken: Cause | None = None  # what worked beside the agents and ended unasked
        self._spent = Spent(self._plan, paths)
        self._instances_run = False
        self._trained = False  # agents were started: there may be something to collect
        self._selector = selectors.DefaultSelector()
        self._wake, wake_end = socket.socketpair()
        for end in (self._wake, wake_end):
            end.setblocking(False)
        self._wake_end = wake_end
        self._selector.register(self._wake, selectors.EVENT_READ, self._signalled)
        self._selector.register(0, selectors.EVENT_READ, self._lifeline_moved)
        self._orders: StopOrders = orders or OF_A_PERSON
        self._early = early
        self._signals: list[int] = []
        self._record = RecordStoring(paths, self._start_helper)

    def run(self) -> Status:
        """Runs the job to its end. Returns how it ended."""
        signal.set_wakeup_fd(self._wake_end.fileno(), warn_on_full_buffer=False)
        for number in self._orders:
            signal.signal(number, lambda number, _: self._signals.append(number))
        before = self._early()
        self._signals += [] if before is None else [before]
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, lambda *_: None)
        status = Status.FAILED
        cause: Cause | None = Cause(CauseKind.ENGINE_FAILED, "the engine's supervisor was interrupted")
        try:
            adopt(self._paths)
            status, cause = self._job()
        except HeadraceError as error:  # a network or a host that cannot be made, in words
            cause = Cause(CauseKind.INSTANCE_NOT_STARTED, error.message, infrastructure=True)
        except Exception as error:  # noqa: BLE001  (the boundary: it is reported, and everything is ended all the same)
            _log.exception("the engine's supervisor failed")
            cause = Cause(CauseKind.ENGINE_FAILED, f"the engine's supervisor failed: {error!r}")
        finally:
            self._instances.close()
            self._end_everything()
            remove_leftovers(self._paths)
            self._instances.remove()
            reason = failure_reason(self._plan, self._paths, cause) if status is Status.FAILED else ""
            self._signals.clear()  # what comes now can only mean the end of the record
            self._events.write(RunFinished(t=time.time(), status=status, cause=cause, failure_reason=reason))
            store_rest(self._paths, self._patience(RECORD_SECONDS), self._record_unwanted)
        return status

    # --- the parts of a run --------------------------------------------------------------------------------------

    def _job(self) -> Outcome:
        self._part(SecondaryStatus.STARTING, "Preparing the instances for training")
        self._spent = Spent(self._plan, self._paths)
        for name, status, message in BEFORE:
            outcome = self._before(name, status, message)
            if outcome is not None:
                return outcome
        self._instances.prepare()
        return self._after(self._attempts())

    def _part(self, status: SecondaryStatus, message: str) -> None:
        if status in {SecondaryStatus.DOWNLOADING, SecondaryStatus.TRAINING} and not self._instances_run:
            self._instances_run = True
            hosts = {group.name: group.hosts for group in self._plan.groups}
            self._events.write(InstancesStarted(t=time.time(), hosts=hosts))
        _log.info("%s: %s", status.value, message)
        self._events.write(StatusChanged(t=time.time(), status=status, message=message))

    def _before(self, name: str, status: SecondaryStatus, message: str) -> Outcome | None:
        """Does some work before the programs start. Returns how the job ends if they must not start."""
        if not is_wanted(self._paths, name):
            return None
        self._part(status, message)
        limit = self._spent.deadline()
        helper = self._start_helper(name)
        self._until_ended(helper, limit, lambda: bool(self._wishes))
        if self._wishes:
            return self._wished()
        if helper.exit_code == 0:
            return None
        if helper.told:
            return Status.STOPPED, self._spent.cause(WORK[name])
        return Status.FAILED, helper.failure()

    def _attempts(self) -> Outcome:
        """Runs the programs, and again after a failure as often as the job's `retry` says."""
        attempt = 1
        while True:
            self._part(SecondaryStatus.TRAINING, "Training in progress")
            status, cause = self._attempt(attempt)
            if self._wishes or not is_tried_again(self._plan.retry, attempt, status, cause):
                return status, cause
            if self._spent.cause("the job") is not None:
                return status, cause
            attempt += 1
            self._instances.prepare()
            of = f"Attempt {attempt} of {self._plan.retry.attempts + 1}"
            self._part(SecondaryStatus.RESTARTING, f"{of}, after: {cause}")
            remove_scratch(self._plan.run_id)
            clear(self._instances.hosts, self._paths)
            self._events.write(AttemptStarted(t=time.time(), number=attempt))
            outcome = self._before(*RESTORE)
            if outcome is not None:
                return outcome

    def _attempt(self, number: int) -> Outcome:
        """Runs the programs once."""
        if self._wishes:
            return self._wished()
        outcome = self._start_beside()
        if outcome is None:
            self._trained = True
            self._running = True
            self._instances.start({**self._spent.variables(), ATTEMPT: str(number)})
            if self._broken is not None:
                self._break(self._broken)
            while self._instances.pids or self._orphans():
                self._step()
            outcome = self._instances.verdict()
            self._running = False
        trouble = self._end_beside()
        broken, self._broken = self._broken, None
        if broken is not None and outcome[1] is not None and outcome[1].kind is broken.kind:
            return Status.FAILED, broken  # with its last lines
        if trouble is not None and outcome[0] is not Status.FAILED:
            return Status.FAILED, trouble
        return outcome

    def _start_beside(self) -> Outcome | None:
        """Starts what works beside the agents. Returns how the job ends if that fails."""
        for name in ("serve_channels", "sync"):
            if not is_wanted(self._paths, name):
                continue
            helper = self._start_helper(name)
            self._beside.append(helper)
            deadline = time.monotonic() + READY_SECONDS
            while not (helper.ready or helper.ended or self._wishes) and time.monotonic() < deadline:
                self._step()
            if not (helper.ready or self._wishes):
                late = Cause(CauseKind.HELPER_FAILED, f"{WORK[name]} failed: not ready within {READY_SECONDS:g} s")
                return Status.FAILED, helper.failure() if helper.ended else late
        return self._wished() if self._wishes else None

    def _end_beside(self) -> Cause | None:
        """Ends what works beside the agents; the checkpoints get time. Returns what went wrong with it."""
        trouble: Cause | None = None
        for helper in self._beside:
            seconds = self._patience(LAST_SYNC_SECONDS) if helper.name == "sync" else HELPER_GRACE
            failed = helper.failed  # on a busy machine a program may have ended before the process that failed it
            helper.terminate()
            self._until_ended(helper, time.monotonic() + seconds, self._at_once)
            # Data that the job has read may have ended too early, or what it has saved may be lost.
            if failed or (helper.name == "sync" and helper.exit_code != 0):
                trouble = helper.failure()
        self._beside = []
        return trouble

    def _after(self, outcome: Outcome) -> Outcome:
        """Collects what the job has made. Returns how it ends."""
        if not (is_wanted(self._paths, "collect") and has_artefacts(self._paths) and self._trained) or self._at_once():
            return outcome
        self._part(SecondaryStatus.UPLOADING, "Uploading generated training model")
        heard = len(self._wishes)
        helper = self._start_helper("collect", {JOB_STATUS: outcome[0].value})
        limit = time.monotonic() + self._patience(COLLECT_SECONDS)
        self._until_ended(helper, limit, lambda: self._at_once() or len(self._wishes) > heard)
        if helper.exit_code == 0 or outcome[0] is Status.FAILED:
            return outcome
        return self._wished() if len(self._wishes) > heard else (Status.FAILED, helper.failure())

    # --- processes beside the agents -----------------------------------------------------------------------------

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

    def _record_unwanted(self) -> str:
        return BY_STOP if self._signals else "as the process that started the run is gone" if self._orphaned() else ""

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
        ending = self._orphans_since > 0 or (self._running and self._instances.leader_ended)
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
        for helper in self._helpers.values():
            helper.look_after()
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
            self._part(SecondaryStatus.STOPPING, "Stopping the training job")
        if self._running:
            self._instances.stop(wish)

    def _wished(self) -> Outcome:
        first = self._wishes[0]
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


def main() -> int:
    """Entry point. Returns 0 if the job is complete."""
    root, caller, provider = sys.argv[1:]
    log_to_stderr(os.environ.get(VARIABLE, ""))  # into engine/supervisor.log: warnings, unless the variable says more
    become_subreaper()
    return 0 if Supervisor(RunPaths(Path(root)), int(caller), provider).run() is Status.COMPLETED else 1


if __name__ == "__main__":
    sys.exit(main())
