"""What the submitting machine keeps of a run on a cluster, by which it is found again: engine/ticket.json.

It is written before anything is submitted, so a submission that was killed at any instant is found again, too.
"""

from __future__ import annotations

import msgspec

from headrace.engines.submitting_process import may_live
from headrace.instance.launch_plan import write_atomically
from headrace.record_files import read_json
from headrace.runs import RunPaths

TICKET, LEADER = "ticket.json", "leader_pod"
SUBMIT_SECONDS = 120.0  # for a submission from a machine whose processes cannot be seen from here


class Ticket(msgspec.Struct, frozen=True):
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
        begun: when the submission began, seconds since the epoch.
        pid, start, node: the process that submits it.
        submitted: all of its objects are made.
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
    begun: float
    pid: int
    start: float
    node: str
    submitted: bool = False
    reads_store: bool = True
    owner: tuple[str, str] = ("ConfigMap", "")

    @property
    def submitter_lives(self) -> bool:
        """Whether the process that submitted the run may still be there."""
        return may_live(self.pid, self.start, self.node, self.begun + SUBMIT_SECONDS)


def write_ticket(paths: RunPaths, ticket: Ticket) -> None:
    """Writes the ticket, at once."""
    paths.engine.mkdir(exist_ok=True)
    write_atomically(paths.engine / TICKET, msgspec.json.encode(ticket))


def read_ticket(paths: RunPaths) -> Ticket:
    """Reads the ticket. Raises OSError, msgspec.DecodeError."""
    return read_json(paths.engine / TICKET, _decoder)


_decoder = msgspec.json.Decoder(Ticket)


def write_leader(paths: RunPaths, uid: str) -> None:
    """Writes which pod is the leader's: a later one of another uid is another life of that host."""
    write_atomically(paths.engine / LEADER, uid.encode())


def read_leader(paths: RunPaths) -> str:
    """Returns the uid of the leader's pod; empty before it runs."""
    try:
        return (paths.engine / LEADER).read_text()
    except FileNotFoundError:
        return ""
