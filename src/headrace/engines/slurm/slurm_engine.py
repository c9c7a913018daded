"""What `headrace.engines` calls: checks a job, submits it, and says later what Slurm knows of its run."""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from msgspec.structs import replace

from headrace.engines.documents import Capability, Document
from headrace.engines.host_order import HostOrder, write_host_order
from headrace.engines.planning.engine_job import named_paths
from headrace.engines.planning.plan_artefacts import check_checkpoint_folder
from headrace.engines.planning.plan_channels import orders_of
from headrace.engines.platform_engine import WAITS, PlatformEngine
from headrace.engines.platform_news import WRITER, end_run, platform_news
from headrace.engines.remote_job import plan_document, prepare_remote_run, ranks_beside_workers
from headrace.engines.slurm import slurm_commands
from headrace.engines.slurm.allocation import node_lost
from headrace.engines.slurm.handover import (
    ENVIRONMENT,
    NOT_KNOWN,
    Placement,
    SlurmTicket,
    StopRequest,
    forget_variables,
    read_placement,
    read_stop_request,
    write_stop_request,
    write_variables,
)
from headrace.engines.slurm.partition_rules import longest_time
from headrace.engines.slurm.slurm_commands import SlurmUnreachable, SubmissionUnknown
from headrace.engines.slurm.slurm_job import SCRIPT, SlurmJob, plan_slurm_job
from headrace.engines.slurm.slurm_state import (
    Component,
    JobOfRun,
    Phase,
    comment_of,
    end_without_word,
    job_of_run,
    phase_of,
    starts_never,
    why_waiting,
)
from headrace.engines.ticket import by_this_process, read_ticket, write_ticket
from headrace.errors import EngineRefused, HeadraceError
from headrace.hosting.isolation.probing import why_no_shared_network
from headrace.hosting.supervision.instances import supervisor_environment
from headrace.hosting.supervision.supervisor import is_tried_again
from headrace.instance.launch_plan import LaunchPlan
from headrace.job import Job
from headrace.job.problems.finding import Finding, Path, show
from headrace.job.rules.engine_rules import IDLE_ON_OWN_HOSTS
from headrace.log_setup import tell_user
from headrace.runs import Cause, CauseKind, Run, RunPaths, Status, give_to_engine, read_plan, runs_dir
from headrace.runs.events import SecondaryStatus, StatusChanged

_log = logging.getLogger(__name__)

SHOWN = "scontrol-show-job.txt"
BACKFILL = "sched/backfill"  # the one scheduler that starts heterogeneous jobs
LAST_LINES_SECONDS = 5.0  # the last lines of a run may be seen so late on a shared file system
SETTLE_SECONDS = 10.0  # for a job to be seen in the queue of which sbatch has said nothing
SETTLE_EVERY = 0.5
FRESH_SECONDS = 1.0  # `refresh` and `alive` are called one after the other

_seen: dict[str, tuple[float, tuple[Component, ...]]] = {}  # by the cluster that was asked


UNUSED: dict[str, str] = {
    **IDLE_ON_OWN_HOSTS,
    "image_uri": "programs run in the Python that runs headrace; a container is named in engines.slurm.launcher",
    **dict.fromkeys(("volume_size", "volume_kms_key"), "the run's folder is on the file system that the nodes share"),
    **dict.fromkeys(("subnets", "security_group_ids"), "the network is the cluster's"),
    "enable_network_isolation": "programs reach what their nodes reach",
    "use_spot_instances": "a partition or a qos says what may be taken away",
    "keep_alive_period_in_seconds": "the nodes go back to the cluster",
    "training_plan": "a reservation is one of engines.slurm.options",
    **dict.fromkeys(WAITS, "Slurm decides how long a job waits"),
}


class SlurmEngine(PlatformEngine[SlurmJob, SlurmTicket]):
    """See `headrace.engines.platform_engine`."""

    name, Ticket, unused = "slurm", SlurmTicket, UNUSED

    def rules(self, job: Job) -> Iterator[Finding]:
        """See `PlatformEngine.rules`: also what only one kernel can do, and what more than one node cannot."""
        yield from super().rules(job)
        for name, channel in job.inputs.items():
            path: Path = ("inputs", name, "input_mode") if channel.input_mode else ("input_mode",)
            mode = job.input_mode_of(name)
            if mode in ("Pipe", "FastFile"):
                message = f"the channel {name!r} would be served on one node only"
                hint = "use File: the data lies on the file system that the nodes share"
                yield Finding(path, message, show(mode), hint)

    def plan(self, job: Job) -> SlurmJob:
        """See `PlatformEngine.plan`."""
        job.check_engine("slurm")
        job.check_volumes()
        check_checkpoint_folder(job, False)
        paths, python = RunPaths(runs_dir() / job.job_name), job.slurm.python or sys.executable
        return plan_slurm_job(job, orders_of(job), paths, python)

    def check(self, job: Job) -> SlurmJob:
        """See `PlatformEngine.check`."""
        slurm_commands.check_programs()
        return super().check(job)

    def render(self, job: Job) -> tuple[Document, ...]:
        """Returns the batch script, those of hosts that come and go, and the launch plan."""
        planned = self.plan(job)
        scripts = planned.scripts(RunPaths(runs_dir() / job.job_name), sys.executable)
        return (*(Document(name, script) for name, script in scripts.items()), plan_document(planned))

    def submit(self, planned: SlurmJob, paths: RunPaths) -> bool:
        """See `PlatformEngine.submit`. Where Slurm may have taken the job and did not say so, the run is there: `bring`
        tells later what became of it."""
        with (
            _hint("try again; `headrace doctor --engine slurm` says whether Slurm answers"),
            slurm_commands.asking(planned.job.slurm.cluster or ""),
        ):
            return _submit(planned, paths)

    def reach(self, ticket: SlurmTicket) -> AbstractContextManager[object]:
        """See `PlatformEngine.reach`: Slurm's programs ask the cluster that has the run."""
        return slurm_commands.asking(ticket.named)

    def being_submitted(self, ticket: SlurmTicket) -> bool:
        """See `PlatformEngine.being_submitted`: whether there is a job, the queue says."""
        return False

    def cancel(self, run: Run, ticket: SlurmTicket, now: bool) -> bool:
        """See `PlatformEngine.cancel`. Raises SlurmUnreachable when Slurm does not answer, or not for this job."""
        with _hint("not stopped: the run goes on; try again"):
            going = _stop(run, ticket, now)
        _forget_after_end(run)
        return going

    def bring(self, run: Run, ticket: SlurmTicket) -> None:
        """Writes into the record that the job waits, and why; and its end, when the lead could not.

        A job that has lost its lead is ended, or queued again: see `end_if_lost`.
        """
        _refresh(run, ticket)
        _forget_after_end(run)

    def alive(self, run: Run) -> bool:
        """Returns whether a run goes on, or Slurm has its job still, which stores the rest. Raises SlurmUnreachable."""
        ticket = self.ticket_of(run)
        with self.reach(ticket):
            job_id, queue = _look(run, ticket)
        return not run.over or (job_id is not None and not _is_over(job_id, queue))

    def said(self, run: Run, ticket: SlurmTicket) -> Iterable[Document]:
        """Returns what Slurm says of the run's job; where it does not answer, or not for this job, that it does not."""
        try:
            job_id, _ = _look(run, ticket)
            words = "" if job_id is None else slurm_commands.describe(job_id)
        except SlurmUnreachable as error:
            words = f"not known: {error}\n"
        yield Document(SHOWN, words or f"Slurm knows no job of {run.id}\n")

    def works(self) -> Iterable[Capability]:
        """See `PlatformEngine.works`."""
        slurm_commands.check_programs()
        yield Capability("slurm", True, f"{slurm_commands.version()} answers", needed=True)
        scheduler = slurm_commands.setting("SchedulerType")
        if scheduler != BACKFILL:
            detail = f"the scheduler is {scheduler}, which starts no heterogeneous jobs"
            yield Capability("several groups", False, detail, f"ask for SchedulerType={BACKFILL}")
        else:
            yield Capability("several groups", True, f"heterogeneous jobs, {scheduler}")
        why_not = why_no_shared_network()  # nodes are often like this machine, and each tries it for itself
        what = "a host has its own /opt/ml, /tmp, name and processes on its node; every node tries it for itself"
        hint = "hosts have the files and names of their nodes, where it is the same there; see isolation in the docs"
        yield Capability("isolation: shared_network", not why_not, why_not or what, hint if why_not else "")
        folder = f"runs lie in {runs_dir()}, which every node must see under this path"
        yield Capability("run folder", True, folder)


ENGINE = SlurmEngine()


def _submit(checked: SlurmJob, paths: RunPaths) -> bool:
    """Hands a run over to Slurm. Returns whether somebody has interrupted that meanwhile: then it is being stopped."""
    job, options = checked.job, checked.job.slurm
    prepare_remote_run(checked, paths)
    steps = {name: options.nodes_of(name).step_options for name in job.hosts}
    order = HostOrder(
        launcher=options.launcher or (),
        python=options.python or sys.executable,
        ranks=ranks_beside_workers(job),
        step_options=steps,
        share_nodes=not options.exclusive,
        isolation=options.isolation,
        named_paths=tuple(filter(os.path.isabs, named_paths(job, checked.plan))),
    )
    write_host_order(paths, order)
    write_variables(paths, supervisor_environment(paths.id))
    ticket = by_this_process(SlurmTicket(NOT_KNOWN, slurm_commands.cluster(), os.getuid(), slurm_commands.asked()))
    write_ticket(paths, ticket)
    longest = longest_time([options.nodes_of(name) for name in job.hosts], slurm_commands.partitions())
    for doubt in checked.doubts():
        tell_user(doubt)
    for name, script in checked.scripts(paths, sys.executable, longest).items():
        (paths.engine / name).write_text(script, encoding="utf-8")
    give_to_engine(paths)
    with _held_interrupt() as interrupted:
        try:
            job_id = slurm_commands.submit(paths.engine / SCRIPT)
        except SubmissionUnknown as error:
            settled = _settle(paths, error)
            job_id = NOT_KNOWN if settled is None else settled
        # From here on there is a job, or may be one: the run stays, whatever happens.
        try:
            if job_id != NOT_KNOWN:
                write_ticket(paths, replace(ticket, job_id=job_id, submitted=True))
            if interrupted():
                _stop_at_once(paths)
        except (HeadraceError, OSError) as error:  # the job's comment names the run, and its lead writes the ticket too
            _log.warning("%s: Slurm has its job, but: %s", paths.id, error)
        return interrupted()


def _settle(paths: RunPaths, error: SubmissionUnknown) -> int | None:
    """Looks for the job that Slurm may have taken. Returns its id; None while it is not known whether there is one.

    Raises:
        EngineRefused: there is none.
    """
    latest = time.monotonic() + SETTLE_SECONDS
    while True:
        try:
            listed = job_of_run(paths.id, slurm_commands.queue())
            if listed is not None:
                return listed
            if error.refused:
                raise EngineRefused(f"Slurm takes no more jobs now: {error.message}", "try again later")
        except SlurmUnreachable as unreachable:
            _log.info("%s: %s", paths.id, unreachable.message)
        if time.monotonic() > latest:
            words = f"it is not known yet whether Slurm has taken the job: {error.message}"
            _log.warning("%s: %s", paths.id, words)
            with platform_news(paths) as news:
                news.status(SecondaryStatus.PENDING, words, time.time())
            return None
        time.sleep(SETTLE_EVERY)


def _stop_at_once(paths: RunPaths) -> None:
    """Stops a run that was just handed over; one whose job is not known yet, as soon as it is there."""
    write_stop_request(paths, StopRequest(True))
    run = Run(paths)
    ticket = read_ticket(paths, SlurmTicket)
    if _look(run, ticket)[0] is not None:
        _stop(run, ticket, True)


@contextmanager
def _held_interrupt() -> Iterator[Callable[[], bool]]:
    """Holds Ctrl-C back, so that Slurm's answer is not lost. Gives whether it came."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, before)


def _stop(run: Run, ticket: SlurmTicket, now: bool) -> bool:
    job_id, queue = _look(run, ticket)
    if job_id is None:
        raise EngineRefused(f"{run.id} has no Slurm job yet", hint="ask again in a moment")
    phase = phase_of(job_id, queue)
    if phase is Phase.WAITING:
        slurm_commands.cancel(job_id, waiting=True)
        phase = phase_of(job_id, slurm_commands.queue())
        if phase is not Phase.RUNNING:  # else it has begun meanwhile
            end_run(run.paths, Status.STOPPED, Cause(CauseKind.STOPPED, "stopped by the user while it waited"))
            if phase is Phase.WAITING:  # it has its nodes, which are made ready
                slurm_commands.cancel(job_id)
            return True
    if phase not in (Phase.RUNNING, Phase.SUSPENDED):
        return False
    write_stop_request(run.paths, StopRequest(now))
    if phase is Phase.SUSPENDED:  # it would take no signal before it is resumed
        slurm_commands.cancel(job_id)
        return True
    slurm_commands.signal_lead(job_id, "INT" if now else "USR1")
    return True


def _forget_after_end(run: Run) -> None:
    """Removes what only the lead would have needed, of a run that the lead could not end."""
    if (run.paths.engine / ENVIRONMENT).exists() and run.over:
        forget_variables(run.paths)


def _refresh(run: Run, ticket: SlurmTicket) -> None:
    asked = time.time()
    job_id, queue = _look(run, ticket)
    if job_id is None:
        if not _may_still_come(run):
            words = "Slurm has no job of this run: sbatch has not said that it was taken, and none has come"
            end_run(run.paths, Status.FAILED, Cause(CauseKind.ENGINE_FAILED, words, infrastructure=True))
        return
    phase = phase_of(job_id, queue)
    if phase is Phase.WAITING and read_stop_request(run.paths) is not None:  # made before the job was known
        _stop(run, ticket, now=True)
    elif phase is Phase.WAITING:
        with platform_news(run.paths) as news:
            reason = why_waiting(job_id, queue)
            never = starts_never(job_id, queue)
            message = f"Slurm job {job_id} waits" + (f": {reason}" if reason else "") + (f". {never}" if never else "")
            news.status(SecondaryStatus.PENDING, message, asked)
    elif _is_over(job_id, queue):
        with platform_news(run.paths) as news:
            if not news.finished:
                shown = slurm_commands.show(job_id)
                ours = any(each.comment == comment_of(run.id) for each in shown) or _runs_script_of(run, job_id)
                ended = shown if ours else ()
                if phase is Phase.ENDED or not ended:  # else squeue and scontrol disagree: they are asked again
                    ended = ended or slurm_commands.accounted(
                        job_id, JobOfRun(run.id, os.getuid(), run.header.job_name)
                    )
                    asked_to_stop = read_stop_request(run.paths) is not None
                    news.end(*end_without_word(job_id, ended, str(run.paths.root), asked_to_stop))
    elif phase is Phase.SUSPENDED:
        with platform_news(run.paths) as news:
            news.status(SecondaryStatus.INTERRUPTED, f"Slurm job {job_id} is suspended", asked)
    elif phase is Phase.RUNNING:
        _tell_that_it_goes_on(run, job_id, asked)
        end_if_lost(run.paths, job_id, queue)


def _tell_that_it_goes_on(run: Run, job_id: int, asked: float) -> None:
    """Writes that a job which was suspended is in the part of its life again in which it was."""
    file = run.paths.events(WRITER)
    last = file.read_text().rstrip().rpartition("\n")[2] if file.exists() else ""
    if f'"{SecondaryStatus.INTERRUPTED.value}"' not in last:
        return
    with platform_news(run.paths) as news:
        parts = [event.status for event in news.events if isinstance(event, StatusChanged)]
        before = [part for part in parts if part is not SecondaryStatus.INTERRUPTED]
        if parts[-1] is SecondaryStatus.INTERRUPTED and before:
            news.status(before[-1], f"Slurm job {job_id} goes on; it was suspended", asked)


@contextmanager
def _hint(words: str) -> Iterator[None]:
    """Has an error of Slurm that has no hint of its own say this one."""
    try:
        yield
    except SlurmUnreachable as error:
        error.hint = error.hint or words
        raise


def _look(run: Run, ticket: SlurmTicket) -> tuple[int | None, tuple[Component, ...]]:
    """Returns the run's Slurm job, and this user's jobs that Slurm knows.

    The comment tells the job from others, and the script that it runs where a cluster rewrites comments. One that is
    not there was forgotten; but only the cluster that had it, asked by its user, can say that.

    Returns:
        The job, or None when it is just being submitted, or never was; and the queue.

    Raises:
        SlurmUnreachable: Slurm does not answer, it is asked from the wrong place, or another job has the id.
    """
    asked = time.monotonic()
    queue = _queue(asked - FRESH_SECONDS)
    listed = job_of_run(run.id, queue)
    if listed is None:
        queue = _queue(asked)
        listed = job_of_run(run.id, queue)
    if listed is not None:
        return listed, queue
    here, uid = slurm_commands.cluster(), os.getuid()
    if (here, uid) != (ticket.cluster, ticket.uid):
        what = f"{run.id} is a job of user {ticket.uid} on the Slurm cluster {ticket.cluster}"
        hint = "ask on a machine of that cluster, as that user"
        raise SlurmUnreachable(f"{what}; user {uid} asks the cluster {here}", hint)
    if any(each.job_id == ticket.job_id for each in queue) and not _runs_script_of(run, ticket.job_id):
        raise SlurmUnreachable(f"Slurm job {ticket.job_id} is not of {run.id}: its comment does not name the run")
    return None if ticket.job_id == NOT_KNOWN else ticket.job_id, queue


def _runs_script_of(run: Run, job_id: int) -> bool:
    """Tells whether a job runs the batch script of a run: its comment may have been rewritten by its cluster."""
    return f"Command={run.paths.engine / SCRIPT}\n" in slurm_commands.describe(job_id)


def _may_still_come(run: Run) -> bool:
    """Tells whether a job that is not in the queue may be on its way there. A lead that comes later ends at once."""
    return time.time() < run.header.created + SlurmTicket.SUBMIT_SECONDS


def _is_over(job_id: int, queue: tuple[Component, ...]) -> bool:
    """Tells whether a job has ended, and so long ago that all it has written can be read."""
    phase = phase_of(job_id, queue)
    if phase is not Phase.ENDED:
        return phase is Phase.FORGOTTEN
    since = time.time() - max(each.end for each in queue if each.job_id == job_id)
    return not 0 <= since < LAST_LINES_SECONDS


def _queue(since: float) -> tuple[Component, ...]:
    """Returns what Slurm said at this time of time.monotonic or later."""
    seen = _seen.get(slurm_commands.asked())
    if seen is None or seen[0] < since:
        now = time.monotonic()
        seen = _seen[slurm_commands.asked()] = (now, slurm_commands.queue())
    return seen[1]


RUNNING = "RUNNING"
_host_names = functools.cache(slurm_commands.host_names)  # the same for the same list


def end_if_lost(paths: RunPaths, job_id: int, queue: Iterable[Component]) -> None:
    """Ends a run that has lost its leader's node, or has its job queued again, as its `retry` says.

    Slurm takes a node out of the job once it has not answered for SlurmdTimeout, and keeps the job, as the leader's
    group has another node (``--no-kill``). The batch script was there: nothing leads the run any more.

    Args:
        paths: the run, whose job runs.
        job_id: the job.
        queue: what squeue said.

    Raises:
        SlurmUnreachable: Slurm does not answer.
        OSError, msgspec.DecodeError: the run cannot be read or written.
    """
    first = next(each for each in queue if (each.job_id, each.offset) == (job_id, 0))
    if first.state != RUNNING or not _is_gone(read_placement(paths), first.nodes):
        return
    with platform_news(paths) as news:  # one process at a time: the job must not be queued again twice
        placed = read_placement(paths)  # of a new attempt, perhaps
        shown = next((each for each in slurm_commands.show(job_id) if each.offset == 0), None)
        if news.finished or shown is None or shown.state != RUNNING or shown.restarts != placed.restarts:
            return
        if not _is_gone(placed, shown.nodes):
            return
        plan = read_plan(paths, LaunchPlan)
        cause = node_lost(plan, placed, placed.nodes[0])
        number = Run(paths, alive=lambda _: True).state().attempt
        if is_tried_again(plan.retry, number, Status.FAILED, cause):
            try:
                slurm_commands.requeue(job_id)
                return
            except SlurmUnreachable as error:
                _log.warning("Slurm job %d could not be queued again: %s", job_id, error.message)
        slurm_commands.cancel(job_id)
        news.end(Status.FAILED, cause)


def _is_gone(placed: Placement, nodes: str) -> bool:
    """Tells whether the node of the batch script, the first one, is not in a list of nodes such as ``data[1-2]``."""
    return bool(placed.nodes and nodes) and placed.nodes[0] not in _host_names(nodes)
