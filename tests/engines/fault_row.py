"""One row of the fault table, and the ends that many rows have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fault_deeds import Deed
from fault_jobs import JobShape

from headrace.runs import Status

if TYPE_CHECKING:
    from fault_play import Play


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes:
        name: what is done, when, to what.
        job: the job.
        fault: waits for its moment and does it.
        cause: regular expression for the run's first cause.
        limit: seconds from the fault to the end of everything.
        status, exit_code: how the run and `headrace run` end; -9 when that is the victim.
        soak: only in the long run.
        starts: whether there is a run at all.
        machine: prepares the machine, before it is looked at for the first time.
        before: prepares what the job finds.
        after: what else must hold.
        needs: what the machine must have beside what the job needs, see tests/needs.py.
    """

    name: str
    job: JobShape
    fault: Deed
    cause: str
    limit: float = 10.0
    status: Status = Status.FAILED
    exit_code: int = 1
    soak: bool = False
    starts: bool = True
    machine: tuple[Callable[[Play], None], ...] = ()
    before: tuple[Callable[[Play], None], ...] = ()
    after: tuple[Callable[[Play], None], ...] = ()
    needs: tuple[str, ...] = ()


STOPPED = {"status": Status.STOPPED, "exit_code": 130, "cause": "stopped by the user"}
COMPLETED = {"status": Status.COMPLETED, "exit_code": 0, "cause": ""}
