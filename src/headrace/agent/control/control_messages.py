"""The messages between agents and coordinator, and the seal on every message.

An agent sends `Report`s: something that happened, numbered from 1. The coordinator sends `Orders`: the whole of what
it wants from that host, and the number of the last report that it has taken in. Both may be sent again: a report
with a known number is ignored, orders are a state and not a step. So a broken connection loses nothing.

Each message travels in a `Frame` with an HMAC-SHA256 under the job's secret. The seal covers the direction, the host,
the agent's incarnation (16 random bytes, fresh in every agent process), the attempt, a sequence number and the body. A
sequence number that is not above the last one is refused, so nothing can be replayed, reflected or sent to another
host; and a frame of another attempt, whose agents may still run on a host that was cut off.

An engine that is no parent of the leader's agent sends its commands (`headrace.instance.lifeline`) the same way, as the
host `ENGINE`; each with an incarnation of its own.

Pure: bytes in, values out."""

from __future__ import annotations

import hmac
from enum import Enum

import msgspec

from headrace.instance.launch_plan import FeedHost
from headrace.instance.lifeline import Command, CommandReader
from headrace.runs.cause import Cause
from headrace.runs.events import Status

SIZE_LIMIT = 1 << 20  # bytes of one frame
LAST_LINES = 60
"""Lines of a program that its end is told with: what starts ranks writes up to 40 of its own behind their words."""
SHOWN_LINES = 20
"""Of these, the last ones that a cause shows; older ones are cut shorter."""
_OLDER_LINE_BYTES = 400
LAST_LINE_BYTES = 2000
WHOLE_RUN = 0
"""Stands for the attempt in the frames of supervisors, which outlive attempts."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Hello(_Message, frozen=True, tag="hello"):
    """The agent has started."""

    group: str


class Demand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rank needs, as it told last: see `headrace.feed.tuning.host_rule`."""

    needed: float
    stall: float
    link: float


class Heartbeat(_Message, frozen=True, tag="heartbeat"):
    """The agent is alive. Its number is 0.

    Attributes:
        quiet: seconds since each program that runs last wrote a line or a metric; empty when the job does not need it.
        idle: seconds since the host last worked, see `metrics.activity`; None when the job does not need it.
        unsent: seconds since a worker of tf.data.service on it last sent anything; None when the job does not need it.
        demands: what its ranks need of data workers, where hosts of these come and go.
    """

    quiet: dict[str, float] = {}
    idle: float | None = None
    unsent: float | None = None
    demands: tuple[Demand, ...] = ()


class Ready(_Message, frozen=True, tag="ready"):
    """The host's programs were started, and listen on the port for which other groups wait, if there is one."""


class FeedUp(_Message, frozen=True, tag="feed_up"):
    """The host's feed server accepts connections."""

    executors: int


class FeedStopped(_Message, frozen=True, tag="feed_stopped"):
    """The host's feed server has ended as it was told to."""


class FeedDown(_Message, frozen=True, tag="feed_down"):
    """The host's feed server ended without being told to, because of `cause`. `gone`: it is not started again."""

    cause: Cause
    gone: bool


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
    """A server of tf.data.service serves. `version`: of its TensorFlow."""

    stream: str
    version: str


class ServerDown(_Message, frozen=True, tag="server_down"):
    """A server of tf.data.service ended without being told to.

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
        argv, variables: see `headrace.agent.launchers.mpi_remote`.
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
    """The platform ends this host: its agent got a signal, by this name, that no engine of the job sent."""

    signal: str


class HostEnded(_Message, frozen=True, tag="host_ended"):
    """Everything on the host has ended and is cleaned up."""


Message = (
    Hello
    | Heartbeat
    | Ready
    | FeedUp
    | FeedStopped
    | FeedDown
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


class DaemonEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a daemon ended that this host had asked for; see `DaemonEnded`."""

    number: int
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""


class Orders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that the coordinator wants from one host.

    Attributes:
        ack: number of the last report that was taken in.
        start: start the programs.
        feed: where the data workers are; grows by generation.
        daemons: daemons of mpirun that this host must have started.
        daemon_ends: ends of those that this host had asked for.
        serve: whether its feed server is to run, if it has one.
        stop: stop the programs.
        verdict: how the job ended; the agent may leave.
    """

    ack: int = 0
    start: bool = False
    feed_generation: int = 0
    feed: tuple[FeedHost, ...] = ()
    daemons: tuple[DaemonOrder, ...] = ()
    daemon_ends: tuple[DaemonEnd, ...] = ()
    serve: bool = True
    stop: StopOrder | None = None
    verdict: Status | None = None


class Direction(str, Enum):
    """Who sends. Part of the seal, so that a message cannot be reflected to its sender."""

    TO_COORDINATOR = "to-coordinator"
    TO_AGENT = "to-agent"
    FROM_ENGINE = "from-engine"
    TO_ENGINE = "to-engine"
    FROM_HOST = "from-host"
    """From the supervisor of another host to the leader's, see `headrace.hosting.machines`."""
    TO_HOST = "to-host"

    @property
    def back(self) -> Direction:
        """The direction of answers."""
        return _BACK[self]


_BACK = {
    Direction.TO_COORDINATOR: Direction.TO_AGENT,
    Direction.TO_AGENT: Direction.TO_COORDINATOR,
    Direction.FROM_ENGINE: Direction.TO_ENGINE,
    Direction.TO_ENGINE: Direction.FROM_ENGINE,
    Direction.FROM_HOST: Direction.TO_HOST,
    Direction.TO_HOST: Direction.FROM_HOST,
}
ENGINE = "engine"
"""What stands for the host in the frames of an engine."""


class Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A sealed message, as it travels."""

    host: str
    incarnation: bytes
    attempt: int
    sequence: int
    body: bytes
    seal: bytes


class Refused(Exception):
    """A frame that is not from a peer that knows the secret, not new, or of another attempt."""


_decode_frame = msgspec.msgpack.Decoder(Frame).decode
_decode_report = msgspec.msgpack.Decoder(Report).decode
_decode_orders = msgspec.msgpack.Decoder(Orders).decode
_encode = msgspec.msgpack.Encoder().encode


def encode(value: Report | Orders) -> bytes:
    """Returns the body of a frame."""
    return _encode(value)


def decode_report(body: bytes) -> Report:
    """Reads a frame's body. Raises Refused."""
    try:
        return _decode_report(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(f"not a report: {error}") from None


def decode_orders(body: bytes) -> Orders:
    """Reads a frame's body. Raises Refused."""
    try:
        return _decode_orders(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(f"not orders: {error}") from None


def decode_command(body: bytes) -> Command:
    """Reads the body of an engine's frame. Raises Refused."""
    try:
        (command,) = CommandReader().feed(body)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise Refused(f"not one command: {error}") from None
    return command


def open_frame(data: bytes, secret: bytes, direction: Direction, attempt: int) -> Frame:
    """Reads a frame and checks its seal and attempt, not yet its sequence number. Raises Refused."""
    try:
        frame = _decode_frame(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refused("not a frame") from None
    expected = _seal(secret, direction, frame.host, frame.incarnation, frame.attempt, frame.sequence, frame.body)
    if not hmac.compare_digest(expected, frame.seal):
        raise Refused("wrong seal")
    if frame.attempt != attempt:
        raise Refused(f"{frame.host} is of attempt {frame.attempt}, and this is attempt {attempt}")
    return frame


class Link:
    """One end of the talk between an agent and the coordinator. Outlives connections.

    Args:
        secret: the job's secret.
        outward: the direction in which this end sends.
        host: the agent's host.
        incarnation: the agent's.
        attempt: which attempt of the job this is, from 1.
    """

    def __init__(self, secret: bytes, outward: Direction, host: str, incarnation: bytes, attempt: int = 1) -> None:
        self.host = host
        self.incarnation = incarnation
        self._attempt = attempt
        self._secret = secret
        self._outward = outward
        self._sent = 0
        self._seen = 0

    def seal(self, body: bytes) -> bytes:
        """Returns the next frame."""
        self._sent += 1
        seal = _seal(self._secret, self._outward, self.host, self.incarnation, self._attempt, self._sent, body)
        return _encode(Frame(self.host, self.incarnation, self._attempt, self._sent, body, seal))

    def open(self, data: bytes) -> bytes:
        """Returns the body of a frame from the other end. Raises Refused."""
        return self.accept(open_frame(data, self._secret, self._outward.back, self._attempt))

    def accept(self, frame: Frame) -> bytes:
        """Returns the body of a frame whose seal was checked, if it is for this link and new. Raises Refused."""
        if frame.host != self.host or not hmac.compare_digest(frame.incarnation, self.incarnation):
            raise Refused(f"a frame of another agent than the one of {self.host}")
        if frame.sequence <= self._seen:
            raise Refused(f"frame {frame.sequence} of {self.host} was seen before")
        self._seen = frame.sequence
        return frame.body


def _seal(secret: bytes, direction: Direction, *signed: str | bytes | int) -> bytes:
    # An encoded list, not a concatenation: no two different messages give the same bytes.
    return hmac.digest(secret, _encode(["headrace control 2", direction.value, *signed]), "sha256")


def clip_lines(lines: list[bytes]) -> tuple[str, ...]:
    """Returns the last lines of a program, short enough for a message."""
    older, shown = lines[-LAST_LINES:-SHOWN_LINES], lines[-SHOWN_LINES:]
    cut = [*(line[:_OLDER_LINE_BYTES] for line in older), *(line[:LAST_LINE_BYTES] for line in shown)]
    return tuple(line.decode(errors="replace") for line in cut)
