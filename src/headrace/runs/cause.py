"""Why a job did not succeed, as a value: what kind of thing went wrong, where, and how the program ended.

Programs decide by `CauseKind`, `exit_code`, `signal` and `then`, never by words. The words are made here, by
`cause_text`, and nowhere else.
"""

from __future__ import annotations

import enum

import msgspec

from headrace.exit_status import exit_text


class CauseKind(str, enum.Enum):
    """What went wrong."""

    UNKNOWN = "unknown"
    """Written by an older headrace, which recorded only words, or of a kind that only a newer one knows."""

    PROGRAM_EXITED = "program_exited"
    """A program ended with an exit code other than 0, or was killed by a signal."""
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel killed a program for memory."""
    CHILD_OUT_OF_MEMORY = "child_out_of_memory"
    """A program ended after the kernel had killed one of its processes for memory."""
    LAUNCHER_KILLED = "launcher_killed"
    """A process that mpirun takes for a rank or a daemon was killed by a signal; detail names it."""
    RANKS_MISSING = "ranks_missing"
    """mpirun ended, but not all of its ranks ended with 0."""
    STALLED = "stalled"
    """No program printed or measured anything for too long."""

    SERVER_FAILED = "server_failed"
    """A server of the data service could not be started, was not ready in time, or fell silent."""
    DATA_SERVICE_LOST = "data_service_lost"
    """No server of the data service is left that the job needs, or one that it needs does not come back."""
    DATA_SERVICE_REFUSED = "data_service_refused"
    """A server of the data service cannot run there, or does not fit the others."""
    DATA_SERVICE_OUT_OF_MEMORY = "data_service_out_of_memory"
    """The kernel killed servers of the data service for memory again and again."""

    HOST_LOST = "host_lost"
    """The agent of a host ended, fell silent or was cut off."""
    HOST_MISSING = "host_missing"
    """A host did not register in time."""
    GROUP_NOT_READY = "group_not_ready"
    """A group on which another one depends did not become ready."""
    INSTANCE_NOT_STARTED = "instance_not_started"
    """The engine could not make an instance or the job's network."""
    PREEMPTED = "preempted"
    """The platform took the job's instances for another job."""
    NETWORK_LOST = "network_lost"
    """The job's network lost its connection to the outside."""
    HELPER_FAILED = "helper_failed"
    """A process of the run beside its agents failed: installing, filling channels, collecting ..."""
    COORDINATOR_LOST = "coordinator_lost"
    """The coordinator ended without a verdict."""
    ENGINE_FAILED = "engine_failed"
    """The process that answers for the run failed or was killed."""
    CALLER_DIED = "caller_died"
    """The process that had started the run died."""

    MAX_RUN = "max_run"
    """The job ran longer than max_run."""
    BUDGET = "budget"
    """The job cost more than its budget."""
    STOPPED = "stopped"
    """The job was asked to stop."""

    @classmethod
    def _missing_(cls, value: object) -> CauseKind:
        return cls.UNKNOWN


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a job did not succeed: the first thing that went wrong. Also how one program ended, then without a place.

    Attributes:
        kind: what went wrong.
        detail: what more is known, for people.
        group, host, stream: the program; stream is a rank, ``feed`` or ``agent``. Empty where there is none.
        exit_code: exit code of the program, None if it was killed or did not end.
        signal: number of the signal that killed it, None if none did.
        last_lines: its last output.
        infrastructure: a machine or an agent failed, not the user's program: another attempt may well succeed.
        then: what came of it.
        note: what else may explain it, for people.
    """

    kind: CauseKind = CauseKind.UNKNOWN
    detail: str = ""
    group: str = ""
    host: str = ""
    stream: str = ""
    exit_code: int | None = None
    signal: int | None = None
    last_lines: tuple[str, ...] = ()
    infrastructure: bool = False
    then: Cause | None = None
    note: str = ""

    @property
    def place(self) -> str:
        """``group/host[stream]``, as much of it as there is."""
        if not self.host:
            return ""
        return f"{self.group}/{self.host}[{self.stream}]" if self.stream else f"{self.group}/{self.host}"

    @property
    def reason(self) -> str:
        """One sentence without the place, see `cause_text`."""
        return cause_text(self)

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" if self.place else self.reason


_BEGINNING = {
    CauseKind.OUT_OF_MEMORY: "killed by the kernel for memory (OOM): ",
    CauseKind.STALLED: "stalled: ",
    CauseKind.MAX_RUN: "MaxRuntimeExceeded: ",
    CauseKind.BUDGET: "BudgetExceeded: ",
}
"""What stands before the detail of a kind."""


def cause_text(cause: Cause) -> str:
    """Returns a cause in words, without its place: the only function that makes them.

    >>> cause_text(Cause(CauseKind.PROGRAM_EXITED, exit_code=3))
    'exited with code 3'
    >>> cause_text(Cause(CauseKind.BUDGET, "the job has cost 2 USD, more than max_cost, 1 USD"))
    'BudgetExceeded: the job has cost 2 USD, more than max_cost, 1 USD'
    """
    if cause.kind is CauseKind.PROGRAM_EXITED:
        text = exit_text(cause.exit_code, cause.signal) + (f": {cause.detail}" if cause.detail else "")
    elif cause.kind is CauseKind.CHILD_OUT_OF_MEMORY:
        text = f"{exit_text(cause.exit_code, cause.signal)}, after {cause.detail}"
    elif cause.kind is CauseKind.LAUNCHER_KILLED:
        text = f"{cause.detail} was {exit_text(cause.exit_code, cause.signal)}"
    else:
        text = _BEGINNING.get(cause.kind, "") + cause.detail
    if cause.then is not None:
        then = cause.then
        text = f"{text}; {then.place} then {cause_text(then)}" if then.place else f"{text}; {then}"
    return f"{text}. Perhaps because {cause.note}" if cause.note else text


class CauseInWords(Cause, frozen=True, omit_defaults=True, kw_only=True):
    """A cause for output as JSON: `kind` is always there, and `reason` says it in words."""

    kind: CauseKind
    reason: str


def in_words(cause: Cause | None) -> CauseInWords | None:
    """Returns a cause for output as JSON."""
    return None if cause is None else CauseInWords(reason=cause.reason, **msgspec.structs.asdict(cause))
