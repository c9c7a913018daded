"""Stands between the caller and the agents.

    python -m headrace.hosting.supervision.supervisor RUN_DIR CALLER_PID PROVIDER

The provider brings the hosts that it prepares, runs and finishes (see `instances`): all of a job, or some. It leads
them through the parts of a run, each only when there is something to do (see `helper_processes`):

    Starting      installs the requirements
    Downloading   fills the channels, brings earlier checkpoints
    Training      one agent a host; beside them what serves channels and keeps checkpoints; again after a failure
                  (Restarting) when the job wants that, with all checkpoints on every host
    Uploading     collects model and output

and only watches meanwhile (see `host_duties`). `CALLER_PID` of a detached run is 0.

At the end it removes the temporary files and writes the last event, `run_finished`. Its status is Completed only when
the coordinator's is.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path

from headrace.errors import FAILURE_CHARACTERS, HeadraceError
from headrace.hosting.helpers.artefacts import has_artefacts, holds_earlier
from headrace.hosting.helpers.helper_main import JOB_STATUS
from headrace.hosting.supervision.cleanup import remove_leftovers, remove_scratch, remove_views
from headrace.hosting.supervision.helper_processes import BY_STOP, WORK, is_wanted, store_rest
from headrace.hosting.supervision.host_duties import HostDuties
from headrace.hosting.supervision.instances import OF_THIS_MACHINE, Instances, Outcome, StopOrders, find_provider
from headrace.instance import read_failure
from headrace.instance.launch_plan import FEED_NAME, LaunchPlan, Retry, channel_dir
from headrace.instance.lifeline import ATTEMPT, COST, SPENT, StopJob
from headrace.instance.paths import TreePaths
from headrace.instance.tree import copy_code
from headrace.log_setup import VARIABLE, log_to_stderr
from headrace.processes.bootstrap import become_subreaper
from headrace.runs import Cause, CauseKind, EventWriter, Run, RunPaths, Status, adopt, read_plan
from headrace.runs.events import AttemptStarted, FailureWritten, InstancesStarted, SecondaryStatus, StatusChanged
from headrace.runs.run_paths import ENGINE
from headrace.runs.state import run_finished, running_seconds

LINKED_TREE = "linked-tree"  # in the folder `engine`: the host's tree is one of links to that of a container


def is_tried_again(retry: Retry, attempt: int, status: Status, cause: Cause | None) -> bool:
    """Tells whether a job gets another attempt. Only a failed one does, not one that was stopped.

    Args:
        retry: what the job wants.
        attempt: number of the attempt that has ended, from 1.
        status, cause: how it ended.
    """
    if status is not Status.FAILED or attempt > retry.attempts:
        return False
    return retry.any or (cause is not None and cause.infrastructure)


class Next(Enum):
    """What follows the end of an attempt.

    ELSEWHERE: another process goes on with the run, on other instances. INTERRUPTED: it goes on here, as nothing but an
    interruption ended the attempt.
    """

    END = "end"
    AGAIN = "again"
    ELSEWHERE = "elsewhere"
    INTERRUPTED = "interrupted"


def next_step(outcome: Outcome, again: bool, moves: bool, wishes: Sequence[StopJob]) -> Next:
    """Returns what follows an attempt. Pure.

    Args:
        outcome: how it ended.
        again: the job may have another one.
        moves: another one would be led by another process.
        wishes: the stops that were asked for.
    """
    if again and moves:
        return Next.ELSEWHERE
    if wishes and all(wish.kind == CauseKind.PREEMPTED.value for wish in wishes):
        return Next.INTERRUPTED if outcome[0] is Status.FAILED and not moves else Next.END
    return Next.AGAIN if again and not wishes else Next.END


def restarting(retry: Retry, number: int, after: str) -> str:
    """Returns in words that this attempt comes, after what has failed the one before it."""
    of = f" of {retry.attempts + 1}" if number <= retry.attempts + 1 else ""  # the platform has a number of its own
    return f"Attempt {number}{of}, after: {after}"


def await_instances(events: EventWriter, retry: Retry, number: int, cause: Cause | None, at: float) -> None:
    """Writes that an attempt is to come once the platform has given the run other instances.

    Args:
        events: the engine's event file.
        retry: what the job wants.
        number: of the attempt.
        cause: why the one before it ended.
        at: when it ended, seconds since the epoch: the clocks of its instances stop then.
    """
    message = restarting(retry, number, f"{cause}")
    for status in (SecondaryStatus.RESTARTING, SecondaryStatus.PENDING):
        events.write(StatusChanged(t=at, status=status, message=message))


def clear(hosts: Iterable[str], plan: LaunchPlan, paths: RunPaths) -> None:
    """Removes what a failed attempt has made, except its checkpoints, logs, events and metrics; code is copied anew.

    Args:
        hosts: names of the hosts whose trees are on this machine.
        plan: the launch plan.
        paths: the run's directory, where the trees are.

    Raises:
        HeadraceError: the code cannot be copied.
        OSError: something cannot be removed.
    """
    remove_views(paths)
    linked = (paths.engine / LINKED_TREE).exists()
    for host in hosts:
        tree = TreePaths(paths.host(host))
        for folder in (tree.model, tree.output_data, tree.output_intermediate):
            _empty(folder.readlink() if linked and folder.is_symlink() else folder)
        _remove(tree.code)  # a new container would have it as it was sent
        try:
            if not plan.isolation.shared_code:
                copy_code(paths.code, tree.code)
        except OSError as error:
            raise HeadraceError(f"{host}: the code could not be copied for another attempt: {error}") from error
        _remove(tree.failure)
        (channel_dir(tree.base) / FEED_NAME).unlink(missing_ok=True)


def _empty(folder: Path) -> None:
    if folder.is_symlink() or not folder.is_dir():  # a program has put a link to other files into its place
        folder.unlink(missing_ok=True)
        folder.mkdir(parents=True)
        return
    for entry in folder.iterdir():
        _remove(entry)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def failure_reason(plan: LaunchPlan, paths: RunPaths, cause: Cause | None) -> str:
    """Returns why a job failed, at most 1024 characters.

    What the user's program wrote to output/failure comes first: that of the host of the first cause, else that of
    another host. Without one it is the cause.
    """
    own = _written_by_headrace(paths)
    hosts = sorted(plan.hosts, key=lambda host: cause is None or host.name != cause.host)
    for host in hosts:
        text = read_failure(paths.host(host.name))
        if text.strip() and text != own.get(host.name):
            return text
    return str(cause or "")[:FAILURE_CHARACTERS]


def _written_by_headrace(paths: RunPaths) -> dict[str, str]:
    """Returns what headrace wrote to output/failure in the last attempt, by host."""
    written: dict[str, str] = {}
    for event in Run(paths).events():
        if isinstance(event, AttemptStarted):
            written.clear()
        elif isinstance(event, FailureWritten):
            written[event.host] = event.text
    return written


class Spent:
    """What a run has used of its time and its budget, over all attempts, and before the programs.

    While the programs run, their coordinator watches both (see `headrace.agent.coordinator.budget_limits`); this tells
    it what was used before. Its clock starts with it.

    Args:
        plan: the launch plan.
        paths: the run's directory, whose events say when instances started and were released.
        before: seconds of max_run that were used up before.
    """

    def __init__(self, plan: LaunchPlan, paths: RunPaths, before: float = 0.0) -> None:
        self._plan = plan
        self._run = Run(paths)
        self._began = time.monotonic() - before

    @property
    def seconds(self) -> float:
        """Seconds of max_run."""
        return time.monotonic() - self._began

    def variables(self) -> dict[str, str]:
        """Returns the variables for the agents of an attempt."""
        now = time.time()
        return {SPENT: f"{self.seconds:.3f}", COST: f"{self._money(now)[0]!r} {now!r}"}

    def deadline(self) -> float:
        """Returns when time or budget is used up if all hosts go on that run now; on time.monotonic, maybe infinite."""
        plan = self._plan
        limit = self._began + plan.max_run if plan.max_run else math.inf
        cost, per_second = self._money(time.time())
        if plan.budget is None or not per_second:
            return limit
        return min(limit, time.monotonic() + (plan.budget.max_cost - cost) / per_second)

    def cause(self, work: str) -> Cause | None:
        """Returns why the run must end: time or budget is used up; None while some is left.

        Args:
            work: what took so long, in words.
        """
        plan = self._plan
        cost, _ = self._money(time.time())
        if plan.max_run and self.seconds >= plan.max_run:
            return Cause(CauseKind.MAX_RUN, f"{work} took longer than max_run, {plan.max_run:g} s")
        if plan.budget is not None and cost >= plan.budget.max_cost:
            return Cause(CauseKind.BUDGET, f"{work}: {plan.budget.words(cost)}")
        return None

    def _money(self, now: float) -> tuple[float, float]:
        """Returns what was spent, and what a second costs now."""
        budget = self._plan.budget
        if budget is None:
            return 0.0, 0.0
        hosts = self._run.state().hosts
        spent = budget.before + math.fsum(budget.per_second[host.group] * host.seconds(now) for host in hosts)
        return spent, math.fsum(budget.per_second[host.group] for host in hosts if host.ended is None)


_log = logging.getLogger("headrace.hosting.supervision.supervisor")  # this module runs as __main__

COLLECT_SECONDS = 3600.0
RECORD_SECONDS = 120.0  # for the end of the record to be stored
RESTORE = ("restore", SecondaryStatus.DOWNLOADING, "Downloading earlier checkpoints")
BEFORE = (
    ("install", SecondaryStatus.STARTING, "Installing the requirements"),
    ("stage", SecondaryStatus.DOWNLOADING, "Downloading the training data"),
    RESTORE,
)


class Supervisor(HostDuties):
    """See the module.

    Args:
        paths: the run's directory.
        caller: pid of the process that started the run; 0 when none answers for it.
        open_instances: see `Provider`.
        orders: what each signal orders; by default SIGTERM and SIGINT are a person's wish, SIGUSR1 an interruption.
        early: called once signals are taken; returns one that has come before, None for none.
    """

    def __init__(
        self,
        paths: RunPaths,
        caller: int,
        open_instances: Callable[[LaunchPlan, RunPaths, EventWriter], Instances],
        orders: StopOrders | None = None,
        early: Callable[[], int | None] = lambda: None,
    ) -> None:
        plan = read_plan(paths, LaunchPlan)
        self._events = EventWriter(paths.events(ENGINE))
        instances = open_instances(plan, paths, self._events)
        super().__init__(paths, caller, plan, instances, orders or OF_THIS_MACHINE, early)
        self._spent = Spent(plan, paths)
        earlier = Run(paths, alive=lambda _: True).state()  # where another process has gone on with the run
        self._spent_before = running_seconds(earlier.transitions, time.time())
        self._number = earlier.attempt
        self._interruptions = 0
        self._instances_run = earlier.instances_started is not None
        self._uploads = False
        self._trained = False  # agents were started: there may be something to collect

    def run(self) -> Status:
        """Runs the job to its end. Returns how it ended: InProgress if it needs other instances to go on."""
        self._take_signals()
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
            if status is not Status.IN_PROGRESS:
                reason = failure_reason(self._plan, self._paths, cause)
                self._signals.clear()  # what comes now can only mean the end of the record
                self._events.write(run_finished(status, cause, reason))
                store_rest(self._paths, self._patience(RECORD_SECONDS), self._record_unwanted)
        return status

    # --- the parts of a run --------------------------------------------------------------------------------------

    def _job(self) -> Outcome:
        self._part(SecondaryStatus.STARTING, "Preparing the instances for training")
        self._spent = Spent(self._plan, self._paths, self._spent_before)
        for name, status, message in BEFORE:
            outcome = self._before(name, status, message)
            if outcome is not None:
                break
        else:
            self._instances.prepare()
            outcome = self._attempts()
        return outcome if outcome[0] is Status.IN_PROGRESS else self._after(outcome)

    def _part(self, status: SecondaryStatus, message: str) -> None:
        if status in {SecondaryStatus.DOWNLOADING, SecondaryStatus.TRAINING} and not self._instances_run:
            self._instances_run = True
            groups, later = self._plan.groups, self._plan.comes_later
            hosts = {group.name: tuple(host for host in group.hosts if not later(host)) for group in groups}
            self._events.write(InstancesStarted(t=time.time(), hosts=hosts))
        _log.info("%s: %s", status.value, message)
        self._events.write(StatusChanged(t=time.time(), status=status, message=message))

    def _stop_begins(self) -> None:
        self._part(SecondaryStatus.STOPPING, "Stopping the training job")

    def _before(self, name: str, status: SecondaryStatus, message: str) -> Outcome | None:
        """Does some work before the programs start. Returns how the job ends if they must not start, or that it goes
        on with other instances."""
        if not is_wanted(self._paths, name):
            return None
        self._part(status, message)
        limit = self._spent.deadline()
        helper = self._start_helper(name)
        self._until_ended(helper, limit, lambda: bool(self._wishes))
        if self._wishes:
            outcome = self._wished()
            return self._moved(outcome[1]) if self._next(outcome) is Next.ELSEWHERE else outcome
        if helper.exit_code == 0:
            return None
        if helper.told:
            return Status.STOPPED, self._spent.cause(WORK[name])
        return Status.FAILED, helper.failure()

    def _attempts(self) -> Outcome:
        """Runs the programs, and again after a failure as often as the job's `retry` says."""
        while True:
            outcome = self._one_attempt()
            status, cause = outcome
            match self._next(outcome):
                case Next.END:
                    return status, cause
                case Next.ELSEWHERE:
                    return self._moved(cause)
                case Next.INTERRUPTED:
                    self._wishes.clear()
                    self._part(SecondaryStatus.INTERRUPTED, f"{cause}")
            self._instances.prepare()
            self._next_attempt(f"{cause}")
            hindrance = self._before(*RESTORE)
            if hindrance is not None:
                return hindrance

    def _next(self, outcome: Outcome) -> Next:
        """Returns what follows an attempt that ended so."""
        moves = self._needs_others()
        retries = (self._plan.retry, Retry(self._interruptions if moves else 0))
        again = any(is_tried_again(retry, self._number, *outcome) for retry in retries)
        return next_step(outcome, again and self._spent.cause("the job") is None, moves, self._wishes)

    def _moved(self, cause: Cause | None) -> Outcome:
        """Writes that another attempt follows on other instances."""
        await_instances(self._events, self._plan.retry, self._number + 1, cause, time.time())
        return Status.IN_PROGRESS, cause

    def _needs_others(self) -> bool:
        """Whether another attempt is led by another process; see `Instances.needs_others`."""
        return self._instances.needs_others()

    def _one_attempt(self) -> Outcome:
        """Runs the programs once, on all hosts."""
        self._part(SecondaryStatus.TRAINING, "Training in progress")
        return self._attempt()

    def _next_attempt(self, after: str) -> None:
        """Begins another attempt. `after`: why the one before it failed."""
        self._number += 1
        self._part(SecondaryStatus.RESTARTING, restarting(self._plan.retry, self._number, after))
        remove_scratch(self._plan.run_id)
        clear(self._instances.hosts, self._plan, self._paths)
        self._events.write(AttemptStarted(t=time.time(), number=self._number))

    def _attempt(self) -> Outcome:
        """Runs the programs of the hosts of this machine once."""
        if self._wishes:
            return self._wished()
        outcome = self._start_beside()
        if outcome is None:
            self._trained = True
            self._running = True
            self._start_agents({**self._spent.variables(), ATTEMPT: str(self._number)})
            if self._broken is not None:
                self._break(self._broken)
            while self._instances.pids or self._orphans() or not self._instances.decided:
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

    def _uploading(self) -> None:
        if not self._uploads:
            self._uploads = True
            self._part(SecondaryStatus.UPLOADING, "Uploading generated training model")

    def _start_agents(self, variables: dict[str, str]) -> None:
        self._instances.start(variables)

    def _after(self, outcome: Outcome) -> Outcome:
        """Collects what the job has made. Returns how it ends."""
        if not (is_wanted(self._paths, "collect") and self._trained) or self._at_once():
            return outcome
        if not (has_artefacts(self._paths) or holds_earlier(self._paths)):
            return outcome
        self._uploading()
        heard = len(self._wishes)
        helper = self._start_helper("collect", {JOB_STATUS: outcome[0].value})
        limit = time.monotonic() + self._patience(COLLECT_SECONDS)
        self._until_ended(helper, limit, lambda: self._at_once() or len(self._wishes) > heard)
        if helper.exit_code == 0 or outcome[0] is Status.FAILED:
            return outcome
        return self._wished() if len(self._wishes) > heard else (Status.FAILED, helper.failure())

    def _record_unwanted(self) -> str:
        return BY_STOP if self._signals else "as the process that started the run is gone" if self._orphaned() else ""


def main() -> int:
    """Entry point. Returns 0 if the job is complete."""
    root, caller, provider = sys.argv[1:]
    log_to_stderr(os.environ.get(VARIABLE, ""))  # into engine/supervisor.log: warnings, unless the variable says more
    become_subreaper()
    supervisor = Supervisor(RunPaths(Path(root)), int(caller), find_provider(provider).open_instances)
    return 0 if supervisor.run() is Status.COMPLETED else 1


if __name__ == "__main__":
    sys.exit(main())
