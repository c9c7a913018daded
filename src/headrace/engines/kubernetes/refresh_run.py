"""A run on its cluster, for whoever looks at it: reached from its directory, its record brought home, why it waits in
Kubernetes' words, and its end.

The end is the record's own, fetched from the leader's pod or, when that is gone, from where the job stores its record.
Only a run whose record cannot be had any more is ended here: with the last word of the leader's pod, or with what
Kubernetes says of it. No object is left, whichever way it was.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from headrace.engines.kubernetes.cluster import Cluster, ClusterRefused, ExecFailed, KubernetesUnreachable, connect
from headrace.engines.kubernetes.fetch_record import RecordFetch, has_end, in_pod, take_end
from headrace.engines.kubernetes.objects import RUN
from headrace.engines.kubernetes.pod_states import (
    REFUSED,
    JobState,
    PodPhase,
    PodState,
    end_of_pod,
    job_states,
    last_event,
    never_made,
    pod_states,
    said,
    waited_too_long,
    why_waiting,
    with_one_cause,
)
from headrace.engines.kubernetes.send_record import SENT_WHOLE
from headrace.engines.platform_news import bring_new, end_run, platform_news
from headrace.engines.ticket import Ticket, write_ticket
from headrace.errors import EngineRefused, RunNotFound, StorageError
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.storage import Store
from headrace.private_folders import write_atomically
from headrace.runs import Cause, CauseKind, Run, RunPaths, Status, read_plan
from headrace.runs.events import (
    ArtefactsStored,
    AttemptStarted,
    HostNotCollected,
    HostRegistered,
    JobStarted,
    SecondaryStatus,
)
from headrace.runs.segment_reader import RecordCopy, open_copy
from headrace.runs.segments import find_record

LEADER = "leader_pod"


class KubeTicket(Ticket, frozen=True):
    """A run on a cluster.

    Attributes:
        server: address of the API server: the same names on another one mean other objects.
        context: of the kubeconfig.
        namespace: where its objects are.
        name: what the label of all its objects says, and the name of the ConfigMap that is made last.
        record: where the job stores its record too; empty if nowhere. A leader's pod is replaced only if it does.
        output_stored: the output is stored elsewhere, and not fetched.
        linger: seconds that the leader's pod waits at the end for somebody who fetches the record.
        max_pending: seconds that a pod may wait; None without a limit.
        owner: kind and name of the object that owns the others.
        reads_store: this machine should reach the places of the job, `record` too; else perhaps only its pods do.
    """

    server: str
    context: str
    namespace: str
    name: str
    record: str
    output_stored: bool
    linger: float
    max_pending: float | None
    owner: tuple[str, str]
    reads_store: bool = True


def write_leader(paths: RunPaths, uid: str) -> None:
    """Writes which pod is the leader's: a later one of another uid is another life of that host."""
    write_atomically(paths.engine / LEADER, uid.encode())


def read_leader(paths: RunPaths) -> str:
    """Returns the uid of the leader's pod; empty before it runs."""
    try:
        return (paths.engine / LEADER).read_text()
    except FileNotFoundError:
        return ""


ASK = "headrace.agent.ask"
ASK_SECONDS = 60.0
EXPLAIN_SECONDS = 5.0  # after which a pod that says nothing while it starts is looked up in the events
TAKEN_AWAY = frozenset({"Preempted", "Evicted", "TaintManagerEviction", "DeletingNode", "NodeNotReady"})
"""Keywords of events that say why a pod was deleted or lost."""
MOST_EXPLAINED = 3  # hosts whose events are asked for in one look


@dataclass(frozen=True)
class RunLook:
    """What the cluster says of a run now.

    Attributes:
        leader: name of the leader's host.
        pods: host to the states of its pods, the newest last.
        at: when it was asked, seconds since the epoch.
    """

    leader: str
    pods: Mapping[str, list[PodState]]
    at: float

    @property
    def newest(self) -> list[PodState]:
        """The newest pod of each host."""
        return [states[-1] for states in self.pods.values()]

    def leader_pod(self, uid: str) -> PodState:
        """Returns the leader's pod of that uid, as absent when it is gone; the newest one without a uid."""
        states = self.pods[self.leader]
        if not uid:
            return states[-1]
        gone = PodState(self.leader, states[-1].group, PodPhase.ABSENT, uid=uid)
        return next((each for each in states if each.uid == uid), gone)

    @property
    def waiting(self) -> list[PodState]:
        """The newest pods of hosts that wait, and hosts without a pod."""
        return [each for each in self.newest if each.phase in (PodPhase.WAITING, PodPhase.ABSENT)]


def explained(cluster: Cluster, look: RunLook, jobs: Mapping[str, JobState]) -> RunLook:
    """Returns a look with the newest warning for hosts that wait and whose pods do not say why.

    Args:
        cluster: where the run is.
        look: what was seen.
        jobs: the Jobs of hosts, for those without a pod.
    """
    silent = [each for each in look.waiting if not each.keyword and look.at - each.since > EXPLAIN_SECONDS]
    pods = dict(look.pods)
    for state in silent[:MOST_EXPLAINED]:
        uid = state.uid or (jobs[state.host].uid if state.host in jobs else "")
        told = last_event(cluster.events(uid)) if uid else ""
        if told:
            keyword = REFUSED if never_made(told) else ""
            pods[state.host] = [*pods[state.host][:-1], replace(state, words=told, keyword=keyword)]
    return replace(look, pods=pods)


def why_gone(cluster: Cluster, state: PodState) -> PodState:
    """Returns the state of a pod that was taken away, with why, if an event says it.

    Args:
        cluster: where it was.
        state: of the pod.
    """
    if state.keyword or not state.uid:
        return state
    told = [each for each in cluster.events(state.uid) if each.get("reason") in TAKEN_AWAY]
    return replace(state, words=said(told[-1]), keyword=told[-1]["reason"]) if told else state


class Reached:
    """A run on its cluster.

    Args:
        run: the run.
        ticket: by which it is found.

    Attributes:
        run, ticket: as given.
        cluster: where it is; asked only when it is used.

    Raises:
        KubernetesUnreachable: the kubeconfig leads to another cluster.
    """

    def __init__(self, run: Run, ticket: KubeTicket) -> None:
        self.run, self.ticket = run, ticket
        self.cluster: Cluster = connect(self.ticket.context, self.ticket.namespace)
        if self.cluster.server != self.ticket.server:
            what = (
                f"{run.id} is on the cluster at {self.ticket.server}; the context {self.ticket.context} is now that at"
            )
            raise KubernetesUnreachable(f"{what} {self.cluster.server}", "use the kubeconfig with which it was started")

    def look(self) -> RunLook:
        """Asks for the pods of the run. Raises KubernetesUnreachable, ClusterRefused."""
        plan = read_plan(self.run.paths, LaunchPlan)
        # data hosts that come and go while it trains are the leader's business: nobody waits for them
        trains = plan.feed_range is not None and any(isinstance(event, JobStarted) for event in self.run.events())
        left_out = plan.comes_and_goes if trains else plan.comes_later
        hosts = {host.name: host.group for host in plan.hosts if not left_out(host.name)}
        at = time.time()
        return RunLook(plan.leader, pod_states(self.cluster.objects("Pod", self.label), hosts, at), at)

    @property
    def label(self) -> dict[str, str]:
        """The label that all objects of the run have."""
        return {RUN: self.ticket.name}

    def jobs(self) -> dict[str, JobState]:
        """Asks for the Jobs of the run. Returns the Job of each host. Raises as `look` does."""
        return job_states(self.cluster.objects("Job", self.label))

    def ask(self, leader: PodState, command: Sequence[str]) -> None:
        """Gives the run's coordinator a command, in the leader's pod.

        Raises:
            ExecFailed, KubernetesUnreachable, ClusterRefused: it was not taken.
        """
        end = self.cluster.execute(leader.pod, in_pod(ASK, *command), io.BytesIO(), ASK_SECONDS)
        if end.exit_code:
            told = end.stderr.strip().splitlines() or [f"exit code {end.exit_code}"]
            raise ExecFailed(f"the pod {leader.pod} has not taken it: {told[-1]}")


_log = logging.getLogger(__name__)

CLEAN_SECONDS = 30.0  # for deleting the objects of a submission that failed
STORE_SECONDS = 10.0  # for an answer of the store of a record
NOBODY = "nobody watched the run; `record: {uri: s3://...}` and `output_path` keep both without that"
OUTPUTS = ("model", "output")  # names of what is fetched when it is not stored
FROM_STORE = "record_from_store"  # below the run's engine directory, while it is fetched from there


def fetched(cluster: Cluster, ticket: KubeTicket, paths: RunPaths, fetch: RecordFetch | None) -> None:
    """Ends a run of which everything is here: the pod is told, its objects are deleted, the record gets its end.

    Args:
        cluster, ticket, paths: the run; to be called while `alone` fetches it.
        fetch: where it came from; None when its pod is gone, or was told before.

    Raises:
        KubernetesUnreachable: the objects cannot be deleted now; it is to be called again.
        OSError: the record cannot be written.
    """
    if fetch is not None:
        try:
            fetch.tell_fetched()
        except (KubernetesUnreachable, ExecFailed, ClusterRefused):
            pass  # it ends when its objects are deleted, which is next
    delete_objects(cluster, ticket)
    take_end(paths)
    _tell_lost_output(ticket, paths)


def delete_objects(cluster: Cluster, ticket: KubeTicket) -> None:
    """Deletes the owner of a run's objects, and with it all of them. Raises KubernetesUnreachable, ClusterRefused."""
    cluster.delete(*ticket.owner)


def delete_after_failure(cluster: Cluster, ticket: KubeTicket) -> None:
    """Deletes what a submission has made that failed, for some time also while the cluster does not answer.

    Raises:
        EngineRefused: it cannot be deleted; says how to.
    """
    deadline = time.monotonic() + CLEAN_SECONDS
    while True:
        try:
            delete_objects(cluster, ticket)
            return
        except (KubernetesUnreachable, ClusterRefused) as error:
            if isinstance(error, ClusterRefused) or time.monotonic() > deadline:
                raise EngineRefused(
                    f"the submission failed, and what it had made cannot be deleted: {error.message}",
                    f"kubectl --context {ticket.context} -n {ticket.namespace} delete {' '.join(ticket.owner).lower()}",
                ) from error
        time.sleep(1.0)


def without_record(
    cluster: Cluster, ticket: KubeTicket, run: Run, leader: PodState, found: tuple[Status, Cause] | None = None
) -> None:
    """Ends a run whose leader's pod can be asked no more.

    Args:
        cluster, ticket, run: the run; to be called while `alone` fetches it.
        leader: what Kubernetes says of its pod.
        found: how it ended, when that is not to be read from the pod.

    Raises:
        KubernetesUnreachable, ClusterRefused: its objects cannot be deleted now; it is to be called again.
        StorageError: the place of its record does not answer, and should from here; likewise.
        OSError: the record cannot be written.
    """
    gone = why_gone(cluster, leader)
    try:
        whole = bool(ticket.record) and from_store(run.paths, ticket.record)
    except StorageError as error:
        if ticket.reads_store:
            raise
        _log.warning("%s: the end of its record stays where it is stored: %s", run.id, error.message)
        whole = False
    delete_objects(cluster, ticket)
    if whole:
        _tell_lost_output(ticket, run.paths)
        return
    status, cause = found or end_of_pod(gone)
    if status is Status.COMPLETED and not ticket.output_stored:
        words = f"the run was Completed, but its pods ended {ticket.linger:g} s later, before its output was fetched"
        status, cause = Status.FAILED, Cause(CauseKind.ENGINE_FAILED, words, infrastructure=True, note=NOBODY)
    end_run(run.paths, status, None if status is Status.COMPLETED else cause)


def _tell_lost_output(ticket: KubeTicket, paths: RunPaths) -> None:
    """Says behind the end of a record that what the run has made was lost with its pod, if it was."""
    if ticket.output_stored or (paths.output.is_dir() and any(paths.output.iterdir())):
        return
    events = Run(paths).events()
    if any(isinstance(event, ArtefactsStored) and event.name in OUTPUTS and event.files for event in events):
        plan = read_plan(paths, LaunchPlan)
        leader = plan.host(plan.leader)
        reason = f"the pod ended before its output was fetched; {NOBODY}"
        with platform_news(paths) as news:
            news.behind_end(HostNotCollected(t=time.time(), group=leader.group, host=leader.name, reason=reason))


def from_store(paths: RunPaths, uri: str) -> bool:
    """Brings the record from where the job stores it. Returns whether it has its end then.

    Args:
        paths: the run.
        uri: below which runs have their records.

    Raises:
        StorageError: it cannot be read now.
        OSError: the record here cannot be written.
    """
    scratch = paths.engine / FROM_STORE
    with Store(STORE_SECONDS) as store:
        try:
            _, place = find_record(store, f"{uri.rstrip('/')}/{paths.id}")
        except RunNotFound:  # nothing was stored yet
            return False
        copy = open_copy(store, paths.id, place, scratch)
        RecordCopy(store, copy).update()
    bring_new(copy, paths, SENT_WHOLE, last=True)
    shutil.rmtree(scratch, ignore_errors=True)
    return Run(paths).over


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
        fetched(reached.cluster, ticket, run.paths, None)
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
    delete_objects(cluster, ticket)
    words = "headrace was killed while it submitted the job; what it had made is deleted"
    end_run(reached.run.paths, Status.FAILED, Cause(CauseKind.CALLER_DIED, words, infrastructure=True))
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
    jobs = reached.jobs()
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
            without_record(reached.cluster, reached.ticket, run, leader)
    elif leader.phase in (PodPhase.ENDED, PodPhase.LOST, PodPhase.LEAVING) or (not jobs and _is_gone(reached, leader)):
        without_record(reached.cluster, reached.ticket, run, leader)
    else:
        _tell_waiting(reached, look, jobs)


def _is_gone(reached: Reached, leader: PodState) -> bool:
    """Returns whether a run without Jobs is no longer there: somebody has deleted its objects, or their time was over.

    A JobSet may have no Jobs yet.
    """
    kind = reached.ticket.owner[0]
    return leader.phase is PodPhase.ABSENT and not (kind == "JobSet" and reached.cluster.objects(kind, reached.label))


def _fetch(reached: Reached, look: RunLook, leader: PodState) -> None:
    """Fetches from the leader's pod, and looks after the others."""
    fetch = RecordFetch(reached.cluster, reached.run.paths, leader.pod)
    try:
        if fetch.fetch(FETCH_SECONDS):
            fetched(reached.cluster, reached.ticket, reached.run.paths, fetch)
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
        _tell_waiting(reached, look, reached.jobs(), leader)


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
        without_record(reached.cluster, here, reached.run, state, (Status.FAILED, cause))
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
