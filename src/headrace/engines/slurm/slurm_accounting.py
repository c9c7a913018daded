"""What Slurm's accounting keeps of a job that its controller has forgotten, read from the text of sacct. Pure.

    sacct -n -P -X -j ID -o ACCOUNTING_FORMAT      one line a component, of its last start

A cluster has this where its AccountingStorageType is ACCOUNTING. It may keep no comments (AccountingStoreFlags): then a
job is told from others by its user and its name.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.engines.slurm.slurm_state import ENDED, EndedComponent, comment_of

ACCOUNTING = "accounting_storage/slurmdbd"
ACCOUNTING_FORMAT = "JobID,State,ExitCode,NodeList,UID,JobName,Comment"
_FIELDS = ACCOUNTING_FORMAT.count(",") + 1
_NO_NODES = "None assigned"


@dataclass(frozen=True)
class JobOfRun:
    """By what the job of a run is known in the accounting.

    Attributes:
        run_id: the run.
        uid: of the user who submitted it.
        name: the job's name.
    """

    run_id: str
    uid: int
    name: str


def parse_accounting(text: str, job: JobOfRun) -> tuple[EndedComponent, ...]:
    """Reads what sacct printed in ACCOUNTING_FORMAT. Returns the components that have ended; none if the job is not
    the run's."""
    found = []
    for line in text.splitlines():
        fields = line.split("|", _FIELDS - 1)  # a comment may hold anything
        if len(fields) != _FIELDS:
            continue
        number, state, exit_code, nodes, uid, name, comment = fields
        if (comment or comment_of(job.run_id), uid, name) != (comment_of(job.run_id), str(job.uid), job.name):
            continue
        state = state.partition(" ")[0]  # CANCELLED by 1000
        if state not in ENDED:  # it was never told the end
            continue
        code, _, signal = exit_code.partition(":")
        found.append(
            EndedComponent(
                offset=int(number.partition("+")[2] or 0),
                state=state,
                reason="",
                exit_code=int(code),
                signal=int(signal or 0),
                failed_node="",
                nodes="" if nodes == _NO_NODES else nodes,
                preempted=state == "PREEMPTED",
                comment=comment,
            )
        )
    return tuple(sorted(found, key=lambda each: each.offset))
