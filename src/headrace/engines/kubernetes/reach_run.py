"""A run on its cluster: reached from its directory, looked at, and asked; in Kubernetes' words why its hosts wait."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.engines.kubernetes.cluster import Cluster, ExecFailed, KubernetesUnreachable
from headrace.engines.kubernetes.fetch_record import in_pod
from headrace.engines.kubernetes.kube_ticket import KubeTicket
from headrace.engines.kubernetes.lightkube_cluster import connect
from headrace.engines.kubernetes.objects import RUN
from headrace.engines.kubernetes.pod_states import (
    REFUSED,
    JobState,
    PodPhase,
    PodState,
    job_states,
    last_event,
    never_made,
    pod_states,
    said,
)
from headrace.instance.launch_plan import LaunchPlan
from headrace.runs import Run, read_plan
from headrace.runs.events import JobStarted

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


def look_at(cluster: Cluster, ticket: KubeTicket, leader: str, hosts: Mapping[str, str]) -> RunLook:
    """Asks for the pods of a run: one request.

    Args:
        cluster: where it is.
        ticket: of the run.
        leader: name of its leader's host.
        hosts: name of each host to its group.
    """
    at = time.time()
    return RunLook(leader, pod_states(cluster.objects("Pod", {RUN: ticket.name}), hosts, at), at)


def look_at_jobs(cluster: Cluster, ticket: KubeTicket) -> dict[str, JobState]:
    """Asks for the Jobs of a run: one request. Returns the Job of each host."""
    return job_states(cluster.objects("Job", {RUN: ticket.name}))


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
        return look_at(self.cluster, self.ticket, plan.leader, hosts)

    def ask(self, leader: PodState, command: Sequence[str]) -> None:
        """Gives the run's coordinator a command, in the leader's pod.

        Raises:
            ExecFailed, KubernetesUnreachable, ClusterRefused: it was not taken.
        """
        end = self.cluster.execute(leader.pod, in_pod(ASK, *command), io.BytesIO(), ASK_SECONDS)
        if end.exit_code:
            told = end.stderr.strip().splitlines() or [f"exit code {end.exit_code}"]
            raise ExecFailed(f"the pod {leader.pod} has not taken it: {told[-1]}")
