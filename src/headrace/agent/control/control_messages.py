"""The messages between agents and coordinator.

An agent sends `Report`s: something that happened, numbered from 1. The coordinator sends `Orders`: the whole of what
it wants from that host, and the number of the last report that it has taken in. Both may be sent again: a report
with a known number is ignored, orders are a state and not a step. So a broken connection loses nothing.

Who speaks, and that nobody else reads, changes or repeats it, is for the transport to know (`control_transport`).

Pure: bytes in, values out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from headrace.instance.launch_plan import FeedHost
from headrace.instance.lifeline import Command
from headrace.runs.cause import Cause
from headrace.runs.events import Status

SIZE_LIMIT = 1 << 20  # bytes of one message
SUPERVISOR_LIMIT = 16 << 20  # the same between supervisors; a batch of pieces of a record has at most half
SILENCE_LIMIT = 5.0  # seconds without a word after which a host, or the coordinator, is lost
LAST_LINES = 60
"""Lines of a program that its end is told with: what starts ranks writes up to 40 of its own behind their words."""
SHOWN_LINES = 20
"""Of these, the last ones that a cause shows; older ones are cut shorter."""
_OLDER_LINE_BYTES = 400
_T = TypeVar("_T")
LAST_LINE_BYTES = 2000


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Hello(_Message, frozen=True, tag="hello"):
    """The agent has started. `address`: where others reach its host; empty for where the coordinator knows."""

    group: str
    address: str = ""


class Demand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rank needs, as it told last: see `desired_hosts`."""

    needed: float
    stall: float
    link: float


class Heartbeat(_Message, frozen=True, tag="heartbeat"):
    """The agent is alive. Its number is 0.

    Attributes:
        quiet: seconds since each program that runs last wrote a line or a metric; empty when the job does not need it.
        idle: seconds since the host last worked, see `Activity`; None when the job does not need it.
        unsent: seconds since a worker of tf.data.service on it last sent anything; None when the job does not need it.
        demands: what its ranks need of data workers, where hosts of these come and go.
    """

    quiet: dict[str, float] = {}
    idle: float | None = None
    unsent: float | None = None
    demands: tuple[Demand, ...] = ()


class Ready(_Message, frozen=True, tag="ready"):
    """The host's programs were started, and listen on the port for which other groups wait, if there is one."""


class ExecutorLost(_Message, frozen=True, tag="executor_lost"):
    """A data worker process of the host died.

    Attributes:
        pid: its process.
        cause: how it ended.
        replaced: the feed server has started another one.
    """

    pid: int
    cause: Cause
    replaced: bool


class ServerUp(_Message, frozen=True, tag="server_up"):
    """A server of the data service serves.

    Attributes:
        stream: which one.
        version: of its TensorFlow; empty of a feed server.
        executors: data worker processes of a feed server.
    """

    stream: str
    version: str = ""
    executors: int = 0


class ServerDown(_Message, frozen=True, tag="server_down"):
    """A server of the data service ended without being told to.

    Attributes:
        stream: which one.
        cause: how.
        gone: it is not started again.
        refused: it reported that it cannot run there.
    """

    stream: str
    cause: Cause
    gone: bool
    refused: bool = False


class Exited(_Message, frozen=True, tag="exited"):
    """A rank or script ended.

    Attributes:
        stream: its rank.
        exit_code, signal: exactly one is set.
        at: when, seconds since the epoch on that host's clock.
        stopped: the agent had told it to stop before.
        last_lines: its last output.
        cause: how it ended, when more is known than code and signal.
    """

    stream: str
    at: float
    exit_code: int | None = None
    signal: int | None = None
    stopped: bool = False
    last_lines: tuple[str, ...] = ()
    cause: Cause | None = None


class DaemonWanted(_Message, frozen=True, tag="daemon_wanted"):
    """mpirun on this host wants a daemon on another host, or on this one.

    Attributes:
        number: counts this host's requests, from 1.
        host: where.
        argv, variables: see `headrace.agent.launchers.mpi_command`.
    """

    number: int
    host: str
    argv: tuple[str, ...]
    variables: dict[str, str] = {}


class DaemonEnded(_Message, frozen=True, tag="daemon_ended"):
    """A daemon that this host ran for the mpirun of another one ended, or could not be started.

    Attributes:
        asker, number: whose request it was.
        exit_code, signal: exactly one is set.
        reason: why it could not be started; empty if it was.
    """

    asker: str
    number: int
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""


class ProgramsEnded(_Message, frozen=True, tag="programs_ended"):
    """The ranks or the script of the host were told to stop, and none is left."""


class HostLeaving(_Message, frozen=True, tag="host_leaving"):
    """This host ends: its agent got a signal, by this name, that no engine of the job sent.

    Attributes:
        signal: its name.
        platform: who sent it can only be the platform; else it may be one of the job's own programs.
    """

    signal: str
    platform: bool = True


class HostEnded(_Message, frozen=True, tag="host_ended"):
    """Everything on the host has ended and is cleaned up."""


Message = (
    Hello
    | Heartbeat
    | Ready
    | ExecutorLost
    | ServerUp
    | ServerDown
    | Exited
    | DaemonWanted
    | DaemonEnded
    | ProgramsEnded
    | HostLeaving
    | HostEnded
)


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of an agent. `number` counts from 1; 0 is a heartbeat."""

    number: int
    message: Message


class StopOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to stop.

    Attributes:
        reason: why, in words.
        grace: seconds between SIGTERM and SIGKILL.
        feed: stop the servers of the data service too; ranks and scripts are always stopped.
        leave: the agent may leave when all has ended, whatever becomes of the job.
    """

    reason: str
    grace: float
    feed: bool = False
    leave: bool = False


class DaemonOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A daemon that a host must run; see `DaemonWanted`."""

    asker: str
    number: int
    argv: tuple[str, ...]
    variables: dict[str, str] = {}


class Orders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that the coordinator wants from one host.

    Attributes:
        ack: number of the last report that was taken in.
        start: start the programs.
        feed: where the data workers are, by generation; empty when this connection has had it before.
        daemons: daemons of mpirun that this host must have started.
        daemon_ends: ends of those that this host had asked for.
        stop: stop the programs.
        verdict: how the job ended; the agent may leave.
        failure: for output/failure of this host; empty for nothing.
    """

    ack: int = 0
    start: bool = False
    feed_generation: int = 0
    feed: tuple[FeedHost, ...] = ()
    daemons: tuple[DaemonOrder, ...] = ()
    daemon_ends: tuple[DaemonEnded, ...] = ()
    stop: StopOrder | None = None
    verdict: Status | None = None
    failure: str = ""


class Joining(_Message, frozen=True, tag="joining"):
    """The first frame of an agent.

    Attributes:
        attempt: of the job.
        process: 16 random bytes of its process.
    """

    attempt: int
    process: bytes


class Asking(_Message, frozen=True, tag="asking"):
    """The only frame of an engine: it wants something of the run. The answer is an empty frame."""

    command: Command


class Supervising(_Message, frozen=True, tag="supervising"):
    """The first frame of another host's supervisor; what follows is `headrace.hosting.machines.machine_link`."""


class Refused(Exception):
    """A message that cannot be read, or whose sender may not send it: of another attempt, or of a process replaced."""


def reader_of(decoder: msgspec.msgpack.Decoder[_T], what: str) -> Callable[[bytes], _T]:
    """Returns what reads messages of a kind. It raises Refused for bytes that are none."""

    def read(body: bytes) -> _T:
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Refused(f"not {what}: {error}") from None

    return read


encode = msgspec.msgpack.Encoder().encode
decode_report = reader_of(msgspec.msgpack.Decoder(Report), "a report")
decode_orders = reader_of(msgspec.msgpack.Decoder(Orders), "orders")
decode_opening: Callable[[bytes], Joining | Asking | Supervising] = reader_of(
    msgspec.msgpack.Decoder(Joining | Asking | Supervising), "the beginning of a connection"
)


def clip_lines(lines: list[bytes]) -> tuple[str, ...]:
    """Returns the last lines of a program, short enough for a message."""
    older, shown = lines[-LAST_LINES:-SHOWN_LINES], lines[-SHOWN_LINES:]
    cut = [*(line[:_OLDER_LINE_BYTES] for line in older), *(line[:LAST_LINE_BYTES] for line in shown)]
    return tuple(line.decode(errors="replace") for line in cut)
