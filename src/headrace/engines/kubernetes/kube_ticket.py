"""By what a run on a cluster is found again, and which pod is its leader's."""

from __future__ import annotations

from headrace.engines.ticket import Ticket
from headrace.private_folders import write_atomically
from headrace.runs import RunPaths

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
        reads_store: this machine should reach the places of the job, `record` too; else perhaps only its pods do.
        owner: kind and name of the object that owns the others. Of a run of an older headrace it is that ConfigMap.
    """

    server: str
    context: str
    namespace: str
    name: str
    record: str
    output_stored: bool
    linger: float
    max_pending: float | None
    reads_store: bool = True
    owner: tuple[str, str] = ("ConfigMap", "")


def write_leader(paths: RunPaths, uid: str) -> None:
    """Writes which pod is the leader's: a later one of another uid is another life of that host."""
    write_atomically(paths.engine / LEADER, uid.encode())


def read_leader(paths: RunPaths) -> str:
    """Returns the uid of the leader's pod; empty before it runs."""
    try:
        return (paths.engine / LEADER).read_text()
    except FileNotFoundError:
        return ""
