"""What `refresh` does for a run on a cluster: brings its record home, tells why it waits, ends it when it has ended."""

from __future__ import annotations

import contextlib

import msgspec

from headrace.engines.kubernetes import end_of_run
from headrace.engines.kubernetes.cluster import ExecFailed, KubernetesUnreachable
from headrace.engines.kubernetes.fetch_record import RecordFetch, has_end
from headrace.engines.kubernetes.kube_ticket import KubeTicket, read_leader, write_leader
from headrace.engines.kubernetes.objects import RUN
from headrace.engines.kubernetes.pod_states import (
    JobState,
    PodPhase,
    PodState,
    waited_too_long,
    why_waiting,
    with_one_cause,
)
from headrace.engines.kubernetes.reach_run import Reached, RunLook, explained, look_at_jobs
from headrace.engines.platform_news import platform_news
from headrace.engines.ticket import write_ticket
from headrace.private_folders import write_atomically
from headrace.runs import Cause, CauseKind, Run, Status
from headrace.runs.events import AttemptStarted, HostRegistered, SecondaryStatus

FETCH_SECONDS = 5.0  # of one `refresh`; the next one goes on
WAITS_FOR = "waits_for"  # below the run's engine directory
GIVEN_UP = ("--failed", "--kind", CauseKind.INSTANCE_NOT_STARTED.value, "--grace", "0")
"""How a run is ended whose leader runs and whose other pods do not come."""


def bring_run(run: Run, ticket: KubeTicket) -> None:
    """Brings what the cluster knows of a run into its record. To be called by one process at a time.

    Raises:
        KubernetesUnreachable, ClusterRefused, ExecFailed, StorageError: it cannot be asked now.
        OSError: the record here cannot be written.
    """
    reached = Reached(run, ticket)
    if run.over:
        return
    if has_end(run.paths):
        end_of_run.fetched(reached.cluster, ticket, run.paths, None)
        return
    if ticket.submitted or _submitted_after_all(reached):
        _refresh(reached)


def _submitted_after_all(reached: Reached) -> bool:
    """Looks at a run whose submission did not say that it was complete. Returns whether it is."""
    ticket, cluster = reached.ticket, reached.cluster
    if ticket.submitter_lives:
        return False
    if cluster.get("ConfigMap", ticket.name) is not None:
        write_ticket(reached.run.paths, msgspec.structs.replace(ticket, submitted=True))
        return True
    end_of_run.delete_objects(cluster, ticket)
    with platform_news(reached.run.paths) as news:
        words = "headrace was killed while it submitted the job; what it had made is deleted"
        news.end(Status.FAILED, Cause(CauseKind.CALLER_DIED, words, infrastructure=True))
    return False


def _refresh(reached: Reached) -> None:
    run, paths = reached.run, reached.run.paths
    look, uid = reached.look(), read_leader(paths)
    leader = look.leader_pod(uid)
    if not uid and leader.phase is PodPhase.RUNNING:
        write_leader(paths, leader.uid)
    if leader.phase in (PodPhase.RUNNING, PodPhase.LEAVING) and (uid or leader.phase is PodPhase.RUNNING):
        _fetch(reached, look, leader)
        return
    jobs = look_at_jobs(reached.cluster, reached.ticket)
    job = jobs.get(look.leader)
    newest = look.pods[look.leader][-1]
    if uid:  # it has run, and runs no more
        if reached.ticket.record and newest.uid != uid and newest.phase is PodPhase.RUNNING:
            RecordFetch(reached.cluster, paths, newest.pod).align()
            write_leader(paths, newest.uid)
            _fetch(reached, look, newest)
        elif reached.ticket.record and newest.word is None and job is not None and not job.over:
            _tell_waiting(reached, look, jobs)
        else:
            end_of_run.without_record(reached.cluster, reached.ticket, run, leader)
    elif leader.phase in (PodPhase.ENDED, PodPhase.LOST, PodPhase.LEAVING) or (not jobs and _is_gone(reached, leader)):
        end_of_run.without_record(reached.cluster, reached.ticket, run, leader)
    else:
        _tell_waiting(reached, look, jobs)


def _is_gone(reached: Reached, leader: PodState) -> bool:
    """Returns whether a run without Jobs is no longer there: somebody has deleted its objects, or their time was over.

    A JobSet may have no Jobs yet.
    """
    kind, labels = reached.ticket.owner[0], {RUN: reached.ticket.name}
    return leader.phase is PodPhase.ABSENT and not (kind == "JobSet" and reached.cluster.objects(kind, labels))


def _fetch(reached: Reached, look: RunLook, leader: PodState) -> None:
    """Fetches from the leader's pod, and looks after the others."""
    fetch = RecordFetch(reached.cluster, reached.run.paths, leader.pod)
    try:
        if fetch.fetch(FETCH_SECONDS):
            end_of_run.fetched(reached.cluster, reached.ticket, reached.run.paths, fetch)
            return
    except (ExecFailed, KubernetesUnreachable) as error:
        if leader.words:
            raise KubernetesUnreachable(f"{leader.host}: {leader.words}: {error.message}", error.hint) from error
        if isinstance(error, KubernetesUnreachable):
            raise
        if reached.look().leader_pod(leader.uid).phase is PodPhase.RUNNING:
            raise
        return  # its pod has ended since it was looked at: the next look tells
    if _misses_one(reached.run, look):
        _tell_waiting(reached, look, look_at_jobs(reached.cluster, reached.ticket), leader)


def _misses_one(run: Run, look: RunLook) -> bool:
    """Returns whether a pod waits whose host has not come in this attempt: what the cluster says lags behind."""
    came: set[str] = set()
    for event in run.events() if look.waiting else ():
        if isinstance(event, AttemptStarted):
            came.clear()
        elif isinstance(event, HostRegistered):
            came.add(event.host)
    return any(pod.host not in came for pod in look.waiting)


def _tell_waiting(reached: Reached, look: RunLook, jobs: dict[str, JobState], leader: PodState | None = None) -> None:
    """Writes why hosts wait, and ends a run that has waited for too long.

    Args:
        reached, look, jobs: the run.
        leader: its leader's pod, when that runs.
    """
    ticket = reached.ticket
    look = explained(reached.cluster, look, jobs)
    _write_waiting(reached, look)
    limit = float("inf") if ticket.max_pending is None else ticket.max_pending
    cause = waited_too_long(look.newest, limit, look.at, ticket.begun)
    if cause is None:
        return
    if leader is None:
        here = msgspec.structs.replace(ticket, record="")
        state = look.pods[look.leader][-1]
        end_of_run.without_record(reached.cluster, here, reached.run, state, (Status.FAILED, cause))
    else:  # the leader ends it, and writes its record to the end
        with contextlib.suppress(ExecFailed):
            reached.ask(leader, ["stop", *GIVEN_UP, "--reason", f"{cause.host}: {cause.detail}"])


def _write_waiting(reached: Reached, look: RunLook) -> None:
    """Writes why hosts wait, once for each cause; to be called while `alone`."""
    file = reached.run.paths.engine / WAITS_FOR
    cause = why_waiting(map(with_one_cause, look.newest))
    told = file.read_text() if file.is_file() else ""
    with platform_news(reached.run.paths) as news:
        if cause == told and news.last_status is SecondaryStatus.PENDING:
            return
        news.status(SecondaryStatus.PENDING, why_waiting(look.newest), look.at)
    write_atomically(file, cause.encode())
