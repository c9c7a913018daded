"""What `headrace.engines` calls: checks a job, submits it, brings its record home, and says what the cluster knows."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator

import msgspec

from headrace.engines.documents import Capability, Document
from headrace.engines.kubernetes.cluster import ROLE, ROLE_HINT, ExecFailed, KubernetesUnreachable, connect
from headrace.engines.kubernetes.fetch_record import has_end
from headrace.engines.kubernetes.kubernetes_job import KubernetesJob, check_kubernetes_job, plan_kubernetes_job
from headrace.engines.kubernetes.objects import rendered
from headrace.engines.kubernetes.pack_run import check_code
from headrace.engines.kubernetes.pod_states import PodPhase
from headrace.engines.kubernetes.refresh_run import KubeTicket, Reached, bring_run, read_leader, without_record
from headrace.engines.kubernetes.submit_run import check_cluster, missing_rules, submit_run
from headrace.engines.kubernetes.watch_run import ensure_watched
from headrace.engines.platform_engine import WAITS, PlatformEngine
from headrace.engines.platform_news import alone
from headrace.errors import EngineRefused
from headrace.job import Job
from headrace.job.model.kubernetes_options import KubernetesOptions
from headrace.job.problems.finding import Finding
from headrace.job.rules.engine_rules import IDLE_ON_OWN_HOSTS, NO_RANGE, Unused, unused_keys
from headrace.job.rules.kubernetes_rules import kubernetes_rules
from headrace.runs import Cause, CauseKind, Run, RunPaths, Status, runs_dir

_log = logging.getLogger(__name__)

UNWATCHED = (
    "a process of this machine fetches the record of the run. While it cannot, the record stays in the run's pods, and "
    "for %g s after its end (engines.kubernetes.linger). Write `record: {uri: s3://...}` to keep it without that"
)
LOG_LINES = 10_000  # of one pod, for `logs`


UNUSED: dict[str, str] = {
    **{name: why for name, why in IDLE_ON_OWN_HOSTS.items() if name != "image_uri"},
    **dict.fromkeys(("framework_version", "py_version"), "the image is what it is"),
    "role": "pods have the rights of engines.kubernetes.service_account",
    "volume_size": "a pod's folders are on its node's disk; engines.kubernetes.resources may limit ephemeral-storage",
    "volume_kms_key": "a pod's folders are on its node's disk",
    "code_location": "the code travels in a Secret of the run",
    **dict.fromkeys(("subnets", "security_group_ids"), "the network is the cluster's"),
    "enable_network_isolation": "a NetworkPolicy of the namespace says what pods reach",
    "use_spot_instances": "node_selector and tolerations say which nodes may be taken away",
    "keep_alive_period_in_seconds": "the nodes are the cluster's",
    "training_plan": "engines.kubernetes.queue names a queue with its quota",
    **dict.fromkeys(WAITS, "engines.kubernetes.max_pending says how long a job waits"),
    "tags": "engines.kubernetes.labels are on the cluster's objects",
}


class KubernetesEngine(PlatformEngine[KubernetesJob, KubeTicket]):
    """See `headrace.engines.platform_engine`."""

    name, Ticket, unused, own_trees = "kubernetes", KubeTicket, UNUSED, True

    def rules(self, job: Job) -> Iterator[Finding]:
        """See `PlatformEngine.rules`: also what pods cannot have, and what no pod can reach."""
        yield from super().rules(job)
        yield from kubernetes_rules(job)

    def without_effect(self, job: Job) -> Iterable[Unused]:
        """See `PlatformEngine.without_effect`: a JobSet has all of its pods from beginning to end."""
        yield from super().without_effect(job)
        if job.kubernetes.is_jobset:
            yield from unused_keys(job, NO_RANGE)

    def plan(self, job: Job) -> KubernetesJob:
        """See `PlatformEngine.plan`. Also raises EngineRefused for code that is too large to travel with the job."""
        planned = _planned(job)
        check_code(planned)
        return planned

    def check(self, job: Job) -> KubernetesJob:
        """See `PlatformEngine.check`: also what only the cluster knows."""
        planned = self.plan(job)
        check_kubernetes_job(planned)
        check_cluster(planned, connect(planned.options.context or "", planned.options.namespace))
        return planned

    def render(self, job: Job) -> tuple[Document, ...]:
        """Returns the objects and the launch plan. The job's code is not looked at."""
        return rendered(_planned(job))

    def submit(self, planned: KubernetesJob, paths: RunPaths) -> bool:
        """See `PlatformEngine.submit`."""
        submit_run(planned, paths, connect(planned.options.context or "", planned.options.namespace))
        return False

    def started(self, planned: KubernetesJob, paths: RunPaths, detach: bool) -> None:
        """Has a process of this machine fetch the record of a detached run, if nothing else keeps it."""
        if detach and planned.job.record is None:
            ensure_watched(paths)
            _log.warning(UNWATCHED, planned.options.linger)

    def bring(self, run: Run, ticket: KubeTicket) -> None:
        """See `PlatformEngine.bring`."""
        bring_run(run, ticket)

    def refreshed(self, run: Run, ticket: KubeTicket) -> None:
        """Has the run watched again, after a reboot for example."""
        if not ticket.record and not ticket.submitter_lives and not run.over:
            ensure_watched(run.paths)

    def cancel(self, run: Run, ticket: KubeTicket, now: bool) -> bool:
        """See `PlatformEngine.cancel`; with `now` pods that cannot be asked are deleted without a word from them."""
        reached = Reached(run, ticket)
        leader = reached.look().leader_pod(read_leader(run.paths))
        if has_end(run.paths) or leader.phase is PodPhase.ENDED:
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
            if run.over or has_end(run.paths):  # somebody else has ended it meanwhile
                return False
            waited = leader.phase in (PodPhase.WAITING, PodPhase.ABSENT)
            cause = Cause(CauseKind.STOPPED, f"stopped by the user{' while its pods waited' if waited else ''}")
            here = msgspec.structs.replace(ticket, record="")
            without_record(reached.cluster, here, run, leader, (Status.STOPPED, cause))
        return True

    def alive(self, run: Run) -> bool:
        """See `PlatformEngine.alive`. Raises KubernetesUnreachable where the kubeconfig leads to another cluster."""
        Reached(run, self.ticket_of(run))
        return super().alive(run)

    def said(self, run: Run, ticket: KubeTicket) -> Iterable[Document]:
        """Returns what the cluster has of a run: the logs of its pods as far as nodes keep them, the states of its
        pods, and events. The run's record has all that programs wrote, also when a node has thrown it away."""
        reached = Reached(run, ticket)
        cluster, labels = reached.cluster, reached.label
        uids = []
        for pod in cluster.objects("Pod", labels):
            name = pod["metadata"]["name"]
            uids.append(pod["metadata"]["uid"])
            yield Document(f"{name}.log", cluster.log(name, LOG_LINES))
            yield Document(f"{name}.json", json.dumps(pod.get("status", {}), indent=2) + "\n")
        uids += [job["metadata"]["uid"] for job in cluster.objects("Job", labels)]
        events = [event for uid in uids for event in cluster.events(uid)]
        told = "".join(map(_event_line, events)) or f"the cluster has no events of {run.id}\n"
        yield Document("events.txt", told)

    def works(self) -> Iterable[Capability]:
        """See `PlatformEngine.works`, with the current context of the kubeconfig."""
        options = KubernetesOptions()
        cluster = connect(options.context or "", options.namespace)
        what = f"{cluster.version()} answers at {cluster.server} ({cluster.context})"
        missing = missing_rules(cluster, list(ROLE))
        yield Capability("kubernetes", True, what, needed=True)
        may = f"not: {'; '.join(rule.told for rule in missing)}" if missing else "do all that a run needs"
        what = f"in the namespace {cluster.namespace} this user may {may}"
        yield Capability("permissions", not missing, what, ROLE_HINT if missing else "", needed=True)


ENGINE = KubernetesEngine()


def _planned(job: Job) -> KubernetesJob:
    return plan_kubernetes_job(job, RunPaths(runs_dir().resolve() / job.job_name))


def _event_line(event: dict[str, object]) -> str:
    about = event.get("involvedObject", {})
    name = about.get("name", "") if isinstance(about, dict) else ""
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    return f"{at} {event.get('type', '')} {name} {event.get('reason', '')}: {event.get('message', '')}\n"
