"""From a run's directory to its cluster: connects where it was submitted, and looks at it there."""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec

from headrace.engines.kubernetes.cluster import Cluster, ExecFailed, KubernetesUnreachable
from headrace.engines.kubernetes.fetch_record import in_pod
from headrace.engines.kubernetes.kube_ticket import TICKET, Ticket, read_ticket
from headrace.engines.kubernetes.lightkube_cluster import connect
from headrace.engines.kubernetes.pod_states import PodState
from headrace.engines.kubernetes.run_look import RunLook, look_at
from headrace.instance.launch_plan import LaunchPlan
from headrace.runs import Run, read_plan
from headrace.runs.events import RunFinished

ASK = "headrace.agent.ask"
ASK_SECONDS = 60.0


class Reached:
    """A run on its cluster.

    Args:
        run: the run.

    Attributes:
        run: as given.
        ticket: by which it is found.
        cluster: where it is; asked only when it is used.

    Raises:
        KubernetesUnreachable: its ticket cannot be read, or the kubeconfig leads to another cluster.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        try:
            self.ticket: Ticket = read_ticket(run.paths)
        except (OSError, msgspec.DecodeError) as error:
            raise KubernetesUnreachable(f"{run.paths.engine / TICKET} cannot be read: {error}") from error
        self.cluster: Cluster = connect(self.ticket.context, self.ticket.namespace)
        if self.cluster.server != self.ticket.server:
            what = (
                f"{run.id} is on the cluster at {self.ticket.server}; the context {self.ticket.context} is now that at"
            )
            raise KubernetesUnreachable(f"{what} {self.cluster.server}", "use the kubeconfig with which it was started")

    @property
    def finished(self) -> bool:
        """Whether the record here holds the end of the run."""
        return any(isinstance(event, RunFinished) for event in self.run.events())

    def look(self) -> RunLook:
        """Asks for the pods of the run. Raises KubernetesUnreachable, ClusterRefused."""
        plan = read_plan(self.run.paths, LaunchPlan)
        return look_at(self.cluster, self.ticket, plan.leader, {host.name: host.group for host in plan.hosts})

    def ask(self, leader: PodState, command: Sequence[str]) -> None:
        """Gives the run's coordinator a command, in the leader's pod.

        Raises:
            ExecFailed, KubernetesUnreachable, ClusterRefused: it was not taken.
        """
        end = self.cluster.execute(leader.pod, in_pod(ASK, *command), io.BytesIO(), ASK_SECONDS)
        if end.exit_code:
            told = end.stderr.strip().splitlines() or [f"exit code {end.exit_code}"]
            raise ExecFailed(f"the pod {leader.pod} has not taken it: {told[-1]}")
