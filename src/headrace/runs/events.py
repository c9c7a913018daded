"""The events of a run: typed records, one JSON object a line.

Every event has `event` (its type), `t` (seconds since the epoch, UTC) and the fields below. The agent of a host
writes what happened on that host; the leader's agent also writes what it decided for the job; the engine writes what
it saw from outside, and the last word: `run_finished`. A run without it is still going, or its engine was killed.
"""

from __future__ import annotations

import enum

import msgspec


class Status(str, enum.Enum):
    """SageMaker's TrainingJobStatus."""

    IN_PROGRESS = "InProgress"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPING = "Stopping"
    STOPPED = "Stopped"


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a job did not succeed: the first thing that went wrong.

    Attributes:
        reason: one sentence that stands alone, e.g. ``exited with code 3``.
        group, host, stream: where; stream is a rank, ``feed`` or ``agent``. Empty when it has no place.
        exit_code: exit code of the program, None if it was killed or did not end.
        signal: number of the signal that killed it, None if none did.
        last_lines: its last output.
    """

    reason: str
    group: str = ""
    host: str = ""
    stream: str = ""
    exit_code: int | None = None
    signal: int | None = None
    last_lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f"{self.group}/{self.host}" if self.host else ""
        if place and self.stream:
            place += f"[{self.stream}]"
        return f"{place}: {self.reason}" if place else self.reason


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    t: float


class HostStarted(_Event, frozen=True, tag="host_started"):
    """An engine started an instance and its agent."""

    group: str
    host: str
    pid: int


class HostRegistered(_Event, frozen=True, tag="host_registered"):
    """The coordinator heard from a host for the first time."""

    group: str
    host: str


class HostLost(_Event, frozen=True, tag="host_lost"):
    """A host is gone: its agent died or fell silent."""

    group: str
    host: str
    reason: str


class ProgramStarted(_Event, frozen=True, tag="program_started"):
    """A program was started on a host."""

    group: str
    host: str
    stream: str
    pid: int
    argv: tuple[str, ...] = ()


class ProgramExited(_Event, frozen=True, tag="program_exited"):
    """A program ended. Exactly one of `exit_code` and `signal` is set.

    `reason` says how, in words, when more is known: that the kernel killed it for memory.
    """

    group: str
    host: str
    stream: str
    exit_code: int | None = None
    signal: int | None = None
    stopped: bool = False  # it ended because the agent had asked it to
    reason: str = ""


class FeedReady(_Event, frozen=True, tag="feed_ready"):
    """A host's feed server accepts connections."""

    group: str
    host: str
    executors: int


class DataWorkerLost(_Event, frozen=True, tag="data_worker_lost"):
    """A data worker (executor, feed server or whole host) is gone while the job goes on: the run is degraded.

    `recovered` says that it was replaced.
    """

    group: str
    host: str
    reason: str
    recovered: bool = False


class JobStarted(_Event, frozen=True, tag="job_started"):
    """All hosts have registered and were told to start their programs."""


class JobStopping(_Event, frozen=True, tag="job_stopping"):
    """The coordinator has begun to stop every host."""

    reason: str


class JobFinished(_Event, frozen=True, tag="job_finished"):
    """The coordinator's verdict."""

    status: Status
    cause: Cause | None = None


class RunFinished(_Event, frozen=True, tag="run_finished"):
    """The engine's last word: everything is stopped and cleaned up."""

    status: Status
    cause: Cause | None = None


Event = (
    HostStarted
    | HostRegistered
    | HostLost
    | ProgramStarted
    | ProgramExited
    | FeedReady
    | DataWorkerLost
    | JobStarted
    | JobStopping
    | JobFinished
    | RunFinished
)
"""Any event; `msgspec.json.decode(line, type=Event)` reads one."""
