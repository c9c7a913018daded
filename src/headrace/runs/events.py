"""The events of a run: typed records, one JSON object a line.

Every event has `event` (its type), `t` (seconds since the epoch, UTC) and the fields below. The agent of a host
writes what happened on that host; the leader's agent also writes what it decided for the job; the engine writes what
it saw from outside, and at the end `run_finished`. A run without that is still going, or its engine was killed.

A run has one attempt, or several when it is retried: `attempt_started` begins the second and every later one.
"""

from __future__ import annotations

import enum

import msgspec

from headrace.runs.cause import Cause


class Status(str, enum.Enum):
    """SageMaker's TrainingJobStatus."""

    IN_PROGRESS = "InProgress"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPING = "Stopping"
    STOPPED = "Stopped"


class SecondaryStatus(str, enum.Enum):
    """SageMaker's SecondaryStatus, as far as an engine here can be in it."""

    PENDING = "Pending"
    """The platform has not given the job its instances yet."""
    STARTING = "Starting"
    DOWNLOADING = "Downloading"
    TRAINING = "Training"
    UPLOADING = "Uploading"
    STOPPING = "Stopping"
    RESTARTING = "Restarting"
    INTERRUPTED = "Interrupted"  # spot instances were taken back
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPED = "Stopped"
    MAX_RUNTIME_EXCEEDED = "MaxRuntimeExceeded"


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    t: float


class HostEvent(_Event, frozen=True):
    """An event of one host."""

    group: str
    host: str


class StatusChanged(_Event, frozen=True, tag="status_changed"):
    """The engine began another part of its work. The end of a run is recorded by `run_finished`, not by this event."""

    status: SecondaryStatus
    message: str = ""


class InstancesStarted(_Event, frozen=True, tag="instances_started"):
    """The instances run and cost from here on. `hosts`: the hosts of every group."""

    hosts: dict[str, tuple[str, ...]]


class AttemptStarted(_Event, frozen=True, tag="attempt_started"):
    """The job is tried once more. `number`: 2 for the first retry."""

    number: int


class AttemptBilled(_Event, frozen=True, tag="attempt_billed"):
    """The platform has told what it bills for an attempt that has ended.

    Attributes:
        name: what the platform calls the attempt: TrainingJobName.
        number: which attempt, from 1.
        region: where it was.
        groups: instance type and number of instances of every group.
        training_seconds: TrainingTimeInSeconds: how long the instances ran.
        billable_seconds: BillableTimeInSeconds: how much of it each of them costs; less for spare capacity.
        started, ended: from when to when, as the platform has it; None where it does not tell.
    """

    name: str
    number: int
    region: str
    groups: dict[str, tuple[str, int]]
    training_seconds: int
    billable_seconds: int
    started: float | None = None
    ended: float | None = None


class HostStarted(HostEvent, frozen=True, tag="host_started"):
    """An engine started an instance and its agent."""

    pid: int


class HostIsolated(HostEvent, frozen=True, tag="host_isolated"):
    """A host of a machine of its own took a level of isolation. `why`: why this one, and not a better one."""

    level: str
    why: str


class HostRegistered(HostEvent, frozen=True, tag="host_registered"):
    """The coordinator heard from a host for the first time."""


class HostLost(HostEvent, frozen=True, tag="host_lost"):
    """A host is gone: its agent died or fell silent."""

    reason: str


class HostReleased(HostEvent, frozen=True, tag="host_released"):
    """A host has nothing more to do, or is a data host that is gone until it joins: it costs no more."""


class HostJoined(HostEvent, frozen=True, tag="host_joined"):
    """A data host that was asked for is there. `desired`: hosts that the ranks could use."""

    desired: int


class ProgramStarted(HostEvent, frozen=True, tag="program_started"):
    """A program was started on a host."""

    stream: str
    pid: int
    argv: tuple[str, ...] = ()


class ProgramExited(HostEvent, frozen=True, tag="program_exited"):
    """A program ended. Exactly one of `exit_code` and `signal` is set.

    `reason` says how, in words, when more is known: that the kernel killed it for memory. `lost_lines` of its output
    are not in its log, because the disk did not take them.
    """

    stream: str
    exit_code: int | None = None
    signal: int | None = None
    stopped: bool = False  # it ended because the agent had asked it to
    reason: str = ""
    lost_lines: int = 0

    @property
    def failed(self) -> bool:
        """Whether it failed by itself."""
        return not self.stopped and bool(self.exit_code or self.signal)


class FeedReady(HostEvent, frozen=True, tag="feed_ready"):
    """A host's feed server accepts connections."""

    executors: int


class ServerReady(HostEvent, frozen=True, tag="server_ready"):
    """A server of tf.data.service serves, for the first time or again. `version`: of its TensorFlow."""

    stream: str
    version: str


class DataWorkerLost(HostEvent, frozen=True, tag="data_worker_lost"):
    """A process that serves data (executor, feed server, server of tf.data.service) ended.

    Attributes:
        group, host: where.
        reason: how.
        recovered: it was replaced.
        stream: its name when it is a server of tf.data.service, else empty.
        fatal: the job cannot go on, because no process can serve data any more; else it goes on, degraded.
    """

    reason: str
    recovered: bool = False
    stream: str = ""
    fatal: bool = False


class ChannelProgress(_Event, frozen=True, tag="channel_progress"):
    """How much of an input channel is on this machine. In the last event of a channel it is all of it."""

    channel: str
    files: int
    files_total: int
    bytes: int
    bytes_total: int


class JobStarted(_Event, frozen=True, tag="job_started"):
    """All hosts have registered and were told to start their programs."""


class JobStopping(_Event, frozen=True, tag="job_stopping"):
    """The coordinator has begun to stop every host. `status`: how the job will end."""

    reason: str
    status: Status = Status.STOPPED


class JobFinished(_Event, frozen=True, tag="job_finished"):
    """The coordinator's verdict."""

    status: Status
    cause: Cause | None = None


class RunFinished(_Event, frozen=True, tag="run_finished"):
    """The run is over: everything is stopped and cleaned up. The engine's last event.

    Attributes:
        status: how the job ended.
        cause: why, if it did not succeed.
        failure_reason: SageMaker's FailureReason, at most 1024 characters: what the user's program wrote to
            output/failure, else the cause. Empty when the job did not fail.
    """

    status: Status
    cause: Cause | None = None
    failure_reason: str = ""


class Clash(msgspec.Struct, frozen=True):
    """Several hosts made a file of the same name with different content; only one of them was kept.

    `path` is relative to the folder, e.g. ``weights/model.pt``; `kept` and `dropped` are hosts.
    """

    path: str
    kept: str
    dropped: tuple[str, ...]


class Version(msgspec.Struct, frozen=True):
    """What a machine has brought to a name in one attempt, at last.

    `path` is relative to the place, `digest` of its content, `at` when it was brought there, seconds since the epoch.
    """

    path: str
    digest: str
    at: float


class ArtefactsStored(_Event, frozen=True, tag="artefacts_stored"):
    """What the hosts made was stored.

    Attributes:
        name: ``model``, ``output``, ``checkpoints`` or ``intermediate``.
        uri: where it is: an object, a file or a folder.
        files: files of all hosts together, after the merge; of ``checkpoints`` and ``intermediate`` those that this
            job has brought there, in all its attempts.
        bytes: their bytes.
        stored: bytes at the place, after compression.
        clashes: files of several hosts with one name and different content; at most 100 are listed.
        clash_count: all of them.
        left_out: what cannot be stored (a socket, a broken link), as ``host:path``; at most 100.
        part: host of the machine that has stored this much of it; empty when it is all.
        versions: of a part, what the machine has brought there in this attempt, from which the clashes of machines
            follow; the newest 1000.
    """

    name: str
    uri: str
    files: int
    bytes: int
    stored: int = 0
    clashes: tuple[Clash, ...] = ()
    clash_count: int = 0
    left_out: tuple[str, ...] = ()
    part: str = ""
    versions: tuple[Version, ...] = ()


class LeftFolder(msgspec.Struct, frozen=True):
    """A folder as its host sees it, how many files were written in it, and their bytes."""

    path: str
    files: int
    bytes: int


class FilesLeft(HostEvent, frozen=True, tag="files_left"):
    """Programs wrote files where nobody had asked to keep them (`headrace.runs.disk_use`).

    Attributes:
        group, host: where.
        files, bytes: of all of them.
        folders: the largest ones; a path below the working directory begins with it.
        more: how many further folders there are.
        gone: they are gone with the host; else they lie below its working directory, in the run's directory.
    """

    files: int
    bytes: int
    folders: tuple[LeftFolder, ...]
    more: int = 0
    gone: bool = True


class CheckpointsRestored(_Event, frozen=True, tag="checkpoints_restored"):
    """Earlier checkpoints were brought to the hosts before the programs started."""

    uri: str
    files: int
    bytes: int


class RequirementsInstalled(_Event, frozen=True, tag="requirements_installed"):
    """An environment with a file of requirements is ready.

    Attributes:
        requirements: the file, inside the code.
        environment: folder of the environment.
        groups: whose programs run in it.
        seconds: what it took.
        reused: another job had made it already.
    """

    requirements: str
    environment: str
    groups: tuple[str, ...]
    seconds: float
    reused: bool = False


class FailureWritten(HostEvent, frozen=True, tag="failure_written"):
    """headrace wrote output/failure on a host, because the user's program had not. `text`: what it wrote."""

    text: str


class LeftOut(str, enum.Enum):
    """What the search for metrics in the output of the programs left out."""

    LINES = "lines"
    """Lines that were not searched, because the searches of a second may take `limit` seconds."""
    LINE_ENDS = "line_ends"
    """Lines that were searched in their first `limit` characters only."""
    SEARCHES = "searches"
    """Searches of a definition that were broken off after `limit` seconds."""
    DEFINITION = "definition"
    """A definition that was switched off after `count` such searches. `example` is its regex."""
    VALUES = "values"
    """Values of a definition that are no finite numbers. `example` is the first."""


class MetricsLeftOut(HostEvent, frozen=True, tag="metrics_left_out"):
    """The search for metrics left something out on a host: recorded when it happens first, and counted at the end.

    Attributes:
        group, host: where.
        what: what kind of thing.
        limit: see `LeftOut`.
        definition: name of the metric definition; empty when it concerns all of them.
        count: how many, at the end of the host; 0 while the number is not known.
        example: see `LeftOut`.
    """

    what: LeftOut
    limit: float = 0.0
    definition: str = ""
    count: int = 0
    example: str = ""


class RecordNotStored(_Event, frozen=True, tag="record_not_stored"):
    """The run has finished, and its end could not be stored at the place that the job names for its record.

    Attributes:
        uri: the place.
        reason: why, in words; empty when it is tried once more: what was said before no longer holds.
    """

    uri: str
    reason: str


class HostNotCollected(HostEvent, frozen=True, tag="host_not_collected"):
    """What a host of another machine made, or the end of its record, did not come to the leader.

    Attributes:
        group, host: which one.
        reason: why, in words.
    """

    reason: str


Event = (
    StatusChanged
    | InstancesStarted
    | AttemptStarted
    | AttemptBilled
    | HostStarted
    | HostIsolated
    | HostRegistered
    | HostLost
    | HostReleased
    | HostJoined
    | ProgramStarted
    | ProgramExited
    | FeedReady
    | ServerReady
    | DataWorkerLost
    | ArtefactsStored
    | CheckpointsRestored
    | RequirementsInstalled
    | ChannelProgress
    | FailureWritten
    | MetricsLeftOut
    | JobStarted
    | JobStopping
    | JobFinished
    | RunFinished
    | RecordNotStored
    | HostNotCollected
    | FilesLeft
)
"""Any event; `msgspec.json.decode(line, type=Event)` reads one."""
