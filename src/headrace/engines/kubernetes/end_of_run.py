"""How a run on a cluster comes to its end in the record on this machine, and its objects to theirs.

The end is the record's own, fetched from the leader's pod or, when that is gone, from where the job stores its record.
Only a run whose record cannot be had any more is ended here: with the last word of the leader's pod, or with what
Kubernetes says of it. No object is left, whichever way it was.
"""

from __future__ import annotations

import logging
import shutil
import time

from headrace.engines.kubernetes.cluster import Cluster, ClusterRefused, ExecFailed, KubernetesUnreachable
from headrace.engines.kubernetes.fetch_record import RecordFetch, take_all, take_end
from headrace.engines.kubernetes.kube_ticket import KubeTicket
from headrace.engines.kubernetes.pod_states import PodState, end_of_pod
from headrace.engines.kubernetes.reach_run import why_gone
from headrace.engines.kubernetes.send_record import NOT_SENT, SENT_WHOLE
from headrace.engines.platform_news import platform_news
from headrace.errors import EngineRefused, RunNotFound, StorageError
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.storage import Store
from headrace.runs import Cause, CauseKind, Run, RunPaths, Status, read_plan
from headrace.runs.events import ArtefactsStored, HostNotCollected
from headrace.runs.record_pieces import NewPieces, known_here
from headrace.runs.segment_reader import RecordCopy, open_copy
from headrace.runs.segments import find_record

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
    kind, name = ticket.owner
    cluster.delete(kind, name or ticket.name)


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
    with platform_news(run.paths) as news:
        news.end(status, None if status is Status.COMPLETED else cause)


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
    pieces = NewPieces(copy, SENT_WHOLE, NOT_SENT)
    while True:
        known = known_here(paths, SENT_WHOLE, NOT_SENT)
        new, more = pieces.next(known, last=True)
        take_all(paths, [piece for piece, _ in new], [memoryview(data) for _, data in new])
        if not more:
            break
    shutil.rmtree(scratch, ignore_errors=True)
    return Run(paths).over
