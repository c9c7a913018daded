"""What `headrace.engines` calls: checks a job, submits it, brings its record home, and says what the cluster knows."""

from __future__ import annotations

import json
import logging

import msgspec

from headrace.engines.capability import Capability
from headrace.engines.documents import Document
from headrace.engines.engine_logs import log_documents
from headrace.engines.kubernetes import end_of_run
from headrace.engines.kubernetes.cluster import ROLE, ROLE_HINT, ExecFailed, KubernetesUnreachable
from headrace.engines.kubernetes.fetch_record import has_end
from headrace.engines.kubernetes.kube_ticket import read_leader
from headrace.engines.kubernetes.kubernetes_job import KubernetesJob, check_kubernetes_job, plan_kubernetes_job
from headrace.engines.kubernetes.lightkube_cluster import connect
from headrace.engines.kubernetes.objects import RUN, rendered
from headrace.engines.kubernetes.pack_run import check_code
from headrace.engines.kubernetes.pod_states import PodPhase
from headrace.engines.kubernetes.reach_run import Reached
from headrace.engines.kubernetes.refresh_run import refresh_run
from headrace.engines.kubernetes.submit_run import check_cluster, missing_rules, submit_run
from headrace.engines.kubernetes.watch_run import ensure_watched
from headrace.engines.new_run import new_run
from headrace.engines.one_refresher import alone
from headrace.engines.remote_handle import RemoteHandle
from headrace.errors import EngineRefused
from headrace.job import Job
from headrace.job.model.kubernetes_options import KubernetesOptions
from headrace.runs import Cause, CauseKind, Run, RunPaths, Status, runs_dir

_log = logging.getLogger(__name__)

UNWATCHED = (
    "a process of this machine fetches the record of the run. While it cannot, the record stays in the run's pods, and "
    "for %g s after its end (engines.kubernetes.linger). Write `record: {uri: s3://...}` to keep it without that"
)
LOG_LINES = 10_000  # of one pod, for `logs`


def plan(job: Job) -> KubernetesJob:
    """Returns what would run where; whether it could start now is not checked.

    Raises:
        JobInvalid: what this engine does not have.
        EngineRefused: a folder for checkpoints that hosts cannot have, code that is too large to travel with the job.
        UsageError: its code cannot be used.
    """
    planned = _planned(job)
    check_code(planned)
    return planned


def _planned(job: Job) -> KubernetesJob:
    return plan_kubernetes_job(job, RunPaths(runs_dir().resolve() / job.job_name))


def check(job: Job) -> KubernetesJob:
    """Checks everything that can be known before a job is submitted, and returns what `start` goes on with.

    Raises:
        JobInvalid, EngineRefused: it could not be submitted.
        UsageError: its code cannot be used.
    """
    planned = _planned(job)
    check_kubernetes_job(planned)
    check_code(planned)
    check_cluster(planned, connect(planned.options.context or "", planned.options.namespace))
    return planned


def render(job: Job) -> tuple[Document, ...]:
    """Returns the objects and the launch plan. Raises as `plan` does, but for its code, which is not looked at."""
    return rendered(_planned(job))


def start(job: Job, detach: bool = False) -> RemoteHandle:
    """Submits a run. It lives without this process, detached or not.

    Raises:
        JobInvalid, EngineRefused: then nothing is left.
    """
    checked = check(job)
    cluster = connect(checked.options.context or "", checked.options.namespace)
    with new_run(job, "kubernetes") as made:
        paths = RunPaths(made.root.resolve())
        submit_run(checked.in_run(paths), paths, cluster)
    if detach and job.record is None:
        ensure_watched(paths)
        _log.warning(UNWATCHED, checked.options.linger)
    return RemoteHandle(paths)


def stop(run: Run, now: bool = False) -> bool:
    """Asks a run to stop. Returns whether it was still waiting or running.

    Raises:
        EngineRefused: it cannot be asked; with `now` its pods are deleted then, without a word from them.
    """
    reached = Reached(run)
    ticket = reached.ticket
    if not ticket.submitted and ticket.submitter_lives:
        raise EngineRefused(f"{run.id} is being submitted", "ask again in a moment")
    leader = reached.look().leader_pod(read_leader(run.paths))
    if reached.finished or has_end(run.paths) or leader.phase is PodPhase.ENDED:
        return False
    if leader.phase is PodPhase.RUNNING:
        try:
            reached.ask(leader, ["stop", *(["--now"] if now else [])])
            return True
        except (KubernetesUnreachable, ExecFailed) as error:
            if not now:
                hint = "ask again; `headrace stop --now` deletes its pods, which say no more how they ended then"
                raise EngineRefused(f"{run.id} cannot be asked to stop: {error.message}", hint) from error
    with alone(run.paths, wait=True):
        if reached.finished or has_end(run.paths):  # somebody else has ended it meanwhile
            return False
        waited = leader.phase in (PodPhase.WAITING, PodPhase.ABSENT)
        cause = Cause(CauseKind.STOPPED, f"stopped by the user{' while its pods waited' if waited else ''}")
        here = msgspec.structs.replace(ticket, record="")
        end_of_run.without_record(reached.cluster, here, run, leader, (Status.STOPPED, cause))
    return True


def refresh(run: Run) -> None:
    """Brings what the cluster knows of a run into its record. Raises HeadraceError, OSError when it cannot be asked."""
    refresh_run(run)


def alive(run: Run) -> bool:
    """Returns whether a run goes on: `refresh` writes its end as soon as the cluster has no more of it.

    Raises:
        KubernetesUnreachable: its ticket cannot be read.
    """
    return not Reached(run).finished


def logs(run: Run) -> tuple[Document, ...]:
    """Returns what supervisors and agents of a run have logged, and what the cluster has of it: the logs of its pods
    as far as nodes keep them, the states of its pods, and events.

    This is the second source: the run's record has all that programs wrote, also when a node has thrown it away.

    Raises:
        KubernetesUnreachable, ClusterRefused: it cannot be asked now.
        OSError: a log cannot be read.
    """
    reached = Reached(run)
    cluster, labels = reached.cluster, {RUN: reached.ticket.name}
    found = []
    uids = []
    for pod in cluster.objects("Pod", labels):
        name = pod["metadata"]["name"]
        uids.append(pod["metadata"]["uid"])
        found.append(Document(f"{name}.log", cluster.log(name, LOG_LINES)))
        found.append(Document(f"{name}.json", json.dumps(pod.get("status", {}), indent=2) + "\n"))
    uids += [job["metadata"]["uid"] for job in cluster.objects("Job", labels)]
    events = [event for uid in uids for event in cluster.events(uid)]
    told = "".join(map(_event_line, events)) or f"the cluster has no events of {run.id}\n"
    return (*log_documents(run.paths), *found, Document("events.txt", told))


def _event_line(event: dict[str, object]) -> str:
    about = event.get("involvedObject", {})
    name = about.get("name", "") if isinstance(about, dict) else ""
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    return f"{at} {event.get('type', '')} {name} {event.get('reason', '')}: {event.get('message', '')}\n"


def capabilities() -> tuple[Capability, ...]:
    """Returns what works from this machine, with the current context of the kubeconfig."""
    options = KubernetesOptions()
    try:
        cluster = connect(options.context or "", options.namespace)
        what = f"{cluster.version()} answers at {cluster.server} ({cluster.context})"
        found = [Capability("kubernetes", True, what, needed=True)]
        missing = missing_rules(cluster, list(ROLE))
    except EngineRefused as error:
        return (Capability("kubernetes", False, error.message, error.hint or "ask who runs the cluster", needed=True),)
    where = f"in the namespace {cluster.namespace}"
    if missing:
        what = f"{where} this user may not: {'; '.join(rule.told for rule in missing)}"
        found.append(Capability("permissions", False, what, ROLE_HINT, needed=True))
    else:
        what = f"{where} this user may do all that a run needs"
        found.append(Capability("permissions", True, what, needed=True))
    return tuple(found)
