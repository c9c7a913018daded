"""Leads a run on the leader's node: what the batch script becomes.

    python -m headrace.engines.slurm.lead RUN_DIR
    python -m headrace.engines.slurm.lead RUN_DIR GROUP HOST ATTEMPT

On a node that Slurm has given to one data host alone, which comes and goes, it only starts the agent of that host: the
lead submits that as a job of its own when the host is wanted (`slurm_instances`), and cancels it when it is not.

It puts the nodes' addresses into the launch plan and then is the supervisor that every engine has, without a caller:
nothing that happens on the submitting machine ends the run. Signals tell it what happens, each has one meaning:

    SIGUSR1   a person stops the job (`headrace stop`); SIGINT: at once
    SIGUSR2   Slurm's time limit is near
    SIGTERM   Slurm ends the job: it was cancelled or preempted, or a node failed. That is an infrastructure failure,
              unless a person has asked to stop the job, which was suspended

When the job's `retry` wants another attempt and nodes are gone, Slurm queues the job again: by itself, or because the
lead asks for it. Then another lead goes on with the run, perhaps on other nodes, and without a word of the first, which
may have died with its node: what the attempt before has made is cleared, except its checkpoints.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

from headrace.engines.host_order import HostOrder, read_host_order
from headrace.engines.slurm import slurm_commands
from headrace.engines.slurm.allocation import addresses_of, allocation_of, node_lost, placed, ports_of
from headrace.engines.slurm.handover import (
    NOT_KNOWN,
    Placement,
    SlurmTicket,
    forget_variables,
    read_placement,
    read_stop_request,
    read_variables,
    restarts,
    write_placement,
)
from headrace.engines.slurm.slurm_commands import SlurmUnreachable
from headrace.engines.slurm.slurm_instances import JOB_LOG, SlurmInstances, step_words
from headrace.engines.slurm.slurm_state import said_by_slurm, why_queued_again, why_terminated
from headrace.engines.ticket import read_ticket, write_ticket
from headrace.errors import HeadraceError
from headrace.hosting.supervision.helper_processes import store_rest
from headrace.hosting.supervision.instances import StopOrders, by_user
from headrace.hosting.supervision.supervisor import Supervisor, await_instances, clear
from headrace.instance.launch_plan import LaunchPlan, Ports, plan_text, write_plan
from headrace.instance.lifeline import ATTEMPT, StopJob
from headrace.log_setup import VARIABLE, log_to_stderr
from headrace.private_folders import write_atomically
from headrace.processes.bootstrap import become_subreaper
from headrace.runs import Cause, CauseKind, EventWriter, Run, RunPaths, Status, read_plan
from headrace.runs.events import AttemptStarted, SecondaryStatus, StatusChanged
from headrace.runs.run_paths import ENGINE
from headrace.runs.state import run_finished

_log = logging.getLogger("headrace.engines.slurm.lead")  # this module runs as __main__

KILL_WAIT = 30.0  # Slurm's own default: seconds between its SIGTERM and its SIGKILL
LAST_WORDS = 15.0  # of those, for the agents to end, for what was made to be collected and the record to be written
LEAST_GRACE = 1.0
RECORD_SECONDS = 120.0  # for the end of the record to be stored
RECORD_SECONDS_AGAIN = 5.0  # the same when another lead goes on with it; Slurm may be about to kill this one


def begin_next_attempt(paths: RunPaths, plan: LaunchPlan, log: str, events: EventWriter) -> Cause | None:
    """Begins another attempt of a run, if an earlier lead has begun one.

    Args:
        paths: the run's directory.
        plan: the launch plan of the earlier attempt, or as it was submitted.
        log: the output of the batch script so far.
        events: the engine's event file.

    Returns:
        Why the run must end now: it has no other attempt.

    Raises:
        HeadraceError, OSError: what the earlier attempt has made cannot be cleared.
    """
    run = Run(paths, alive=lambda _: True)  # this process answers for it
    state = run.state()
    parts = [part.status for part in state.transitions if part.status is not SecondaryStatus.PENDING]
    if not parts:
        return None
    number = state.attempt + 1
    if parts[-1] is not SecondaryStatus.RESTARTING:
        cause = _why_began_again(plan, read_placement(paths), said_by_slurm(log))
        if number > plan.retry.attempts + 1:
            return cause
        waits = SecondaryStatus.PENDING
        told = [event.t for event in run.events() if not (isinstance(event, StatusChanged) and event.status is waits)]
        await_instances(events, plan.retry, number, cause, told[-1])
    clear([host.name for host in plan.hosts], plan, paths)
    events.write(AttemptStarted(t=time.time(), number=number))
    return None


def _why_began_again(plan: LaunchPlan, before: Placement, said: str) -> Cause:
    try:
        down = slurm_commands.nodes_down(before.nodes) if before.nodes else ()
    except SlurmUnreachable:  # the run goes on all the same
        down = ()
    if not down:
        return why_queued_again(before.job_id, said)
    return node_lost(plan, before, down[0])


def main() -> int:
    """Entry point. Returns 0 if the job is complete."""
    paths = RunPaths(Path(sys.argv[1]))
    start = read_host_order(paths)
    for name, value in read_variables(paths).items():
        if name not in os.environ or not name.startswith("SLURM"):
            os.environ[name] = value
    if sys.argv[2:]:
        _start_on_own_node(paths, start, *sys.argv[2:])
    log_to_stderr(os.environ.get(VARIABLE, ""))  # into engine/slurm.log
    become_subreaper()
    job_id = int(os.environ["SLURM_JOB_ID"])
    keep_job(paths, job_id)
    if Run(paths).over:
        return 1  # somebody had the ended job queued again
    try:
        cause = _begin(paths, job_id)
        plan = read_plan(paths, LaunchPlan) if cause else _place(paths, start, os.environ)
    except (HeadraceError, OSError, KeyError) as error:
        cause = Cause(CauseKind.INSTANCE_NOT_STARTED, str(error), infrastructure=True)
    if cause:
        return _fail(paths, cause)
    if not plan.retry.attempts and plan.feed_range is None:
        forget_variables(paths)
    _without_caller()
    signals = LeadSignals(paths, job_id, plan.stop_grace)
    status = Supervisor(paths, 0, SlurmInstances, signals.orders, signals.early).run()
    if status is Status.IN_PROGRESS:
        return _queue_again(paths, job_id)
    forget_variables(paths)
    return 0 if status is Status.COMPLETED else 1


def _start_on_own_node(paths: RunPaths, start: HostOrder, group: str, host: str, attempt: str) -> NoReturn:
    """Becomes the srun that starts the agent of a host, unless the run is over: the node may have come late."""
    if Run(paths).over:
        sys.exit()
    os.environ[ATTEMPT] = attempt
    words = step_words(paths, start, group, host)
    os.execvp(words[0], words)


def _fail(paths: RunPaths, cause: Cause) -> int:
    with EventWriter(paths.events(ENGINE)) as events:
        events.write(run_finished(Status.FAILED, cause))
    store_rest(paths, RECORD_SECONDS)
    forget_variables(paths)
    return 1


def keep_job(paths: RunPaths, job_id: int) -> None:
    """Writes the job into the ticket, if the process that submitted it was killed before it could."""
    ticket = read_ticket(paths, SlurmTicket)
    if ticket.job_id == NOT_KNOWN:
        write_ticket(paths, msgspec.structs.replace(ticket, job_id=job_id, submitted=True))


def _begin(paths: RunPaths, job_id: int) -> Cause | None:
    """Begins the run, or another attempt of it. Returns why it must end instead."""
    plan = read_plan(paths, LaunchPlan)
    log = (paths.engine / JOB_LOG).read_text(errors="replace")
    with EventWriter(paths.events(ENGINE)) as events:
        cause = begin_next_attempt(paths, plan, log, events)
    placement = Placement(job_id, allocation_of(os.environ).nodes, restarts(os.environ))
    write_placement(paths, placement)
    if plan.retry.attempts and Run(paths).state().attempt > plan.retry.attempts:
        try:
            slurm_commands.forbid_requeue(job_id)
        except SlurmUnreachable as error:  # a lead that comes all the same ends the run
            _log.warning("Slurm may queue the job again after its last attempt: %s", error)
    return cause


def _queue_again(paths: RunPaths, job_id: int) -> int:
    """Has Slurm queue the job again, unless it has done so by itself."""
    store_rest(paths, RECORD_SECONDS_AGAIN, goes_on=True)
    try:
        if all(each.restarts <= restarts(os.environ) for each in slurm_commands.show(job_id)):
            slurm_commands.requeue(job_id)
    except SlurmUnreachable as error:
        words = f"Slurm job {job_id} could not be queued again: {error.message}"
        return _fail(paths, Cause(CauseKind.ENGINE_FAILED, words, infrastructure=True))
    return 1


def _place(paths: RunPaths, start: HostOrder, variables: Mapping[str, str]) -> LaunchPlan:
    """Puts the allocation into the plan, and the plan and what depends on addresses into the tree of every host."""
    allocation = allocation_of(variables)
    submitted = read_plan(paths, LaunchPlan)
    ports = ports_of(int(variables["SLURM_JOB_ID"])) if start.share_nodes else Ports()
    plan = placed(submitted, allocation, addresses_of(allocation.nodes), start.ranks, ports)
    text = plan_text(plan)
    for host in plan.hosts:
        write_plan(text, host.base_dir)
    write_atomically(paths.plan, text.encode())
    return plan


def _without_caller() -> None:
    """Gives this process a standard input that does not end before it: no caller can die."""
    reading, writing = os.pipe()
    os.dup2(reading, 0)
    os.close(reading)
    os.set_inheritable(writing, False)


class LeadSignals:
    """What each signal means.

    Args:
        paths: the run's directory.
        job_id: the Slurm job. The cluster is asked now how long its jobs have between SIGTERM and SIGKILL.
        stop_grace: seconds between SIGTERM and SIGKILL for the programs.

    Attributes:
        orders: what each signal orders.
    """

    def __init__(self, paths: RunPaths, job_id: int, stop_grace: float) -> None:
        self._paths = paths
        self._job_id = job_id
        self._slurm_grace = min(stop_grace, max(LEAST_GRACE, _kill_wait() - LAST_WORDS))
        self._request_is_taken = False
        self.orders: StopOrders = {
            signal.SIGUSR1: self._by_user,
            signal.SIGINT: lambda again: by_user(True),
            signal.SIGUSR2: self._limit,
            signal.SIGTERM: self._by_slurm,
        }

    def early(self) -> int | None:
        """Returns the signal of a person who asked before signals were taken: it was ignored, the request is a file."""
        request = read_stop_request(self._paths)
        if request is None:
            return None
        self._request_is_taken = True
        return signal.SIGINT if request.now else signal.SIGUSR1

    def _by_user(self, again: bool) -> StopJob:
        if again and self._request_is_taken:  # the signal of the request whose file was read: no second wish
            self._request_is_taken = False
            return by_user(False)
        return by_user(again)

    def _limit(self, again: bool) -> StopJob:
        words = f"the time limit of Slurm job {self._job_id} is near"
        return StopJob(CauseKind.MAX_RUN.value, words, failed=False)

    def _by_slurm(self, again: bool) -> StopJob:
        if read_stop_request(self._paths) is not None:  # a job that was suspended is stopped by scancel
            return msgspec.structs.replace(by_user(again), grace=self._slurm_grace)
        cause = why_terminated(self._job_id, ()).cause  # Slurm is asked once the programs have been told
        return StopJob(cause.kind.value, cause.reason, True, self._slurm_grace, infrastructure=cause.infrastructure)


def _kill_wait() -> float:
    try:
        return float(slurm_commands.setting("KillWait").split()[0])  # `30 sec`
    except (HeadraceError, ValueError, IndexError):
        return KILL_WAIT


if __name__ == "__main__":
    sys.exit(main())
