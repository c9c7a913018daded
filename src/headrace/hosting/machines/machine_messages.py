"""What the supervisors of a run on several machines tell each other. The leader's is the authority.

The supervisor of another host asks again and again (`HostReport`), and the leader's answers with what is wanted now
(`LeaderOrder`). Both are states and no steps, so one that is sent twice, or is lost, changes nothing. What grows of the
host's record travels with the reports, as pieces with offsets; what the host made, when the programs are over.

An attempt goes through these phases, for every host:

    PREPARE n    install requirements, fill channels, bring checkpoints; later ones: clear what the last one made
    RUN n        start the agents
    END n        the programs are over: the last checkpoints are brought to safety
    DELIVER      the job is over: send the end of the record, and what the host made

A report counts if it is newer than the last one of its host: a call that was given up may come late, and a supervisor
whose machine was replaced may still run.

Pure: bytes in, values out. They travel over the control port (`headrace.agent.control.control_transport`).
"""

from __future__ import annotations

import enum

import msgspec

from headrace.agent.control.control_messages import Refused
from headrace.runs import Cause
from headrace.runs.segments import Piece

HOLD_SECONDS = 0.5  # the leader answers a report at the latest then, at once when it wants something else
SILENCE_SECONDS = 10.0  # a supervisor that was heard and is silent for so long is lost
DOUBT_SECONDS = 3.0  # the same, when agents have lost each other there


class Phase(str, enum.Enum):
    """What a host has to do; see the module."""

    PREPARE = "prepare"
    RUN = "run"
    END = "end"
    DELIVER = "deliver"


class TreePiece(msgspec.Struct, frozen=True, array_like=True):
    """A part of what a host made: one file, folder or link below its /opt/ml.

    Attributes:
        path: relative to there, as the file system has it.
        kind: ``file``, ``folder``, ``link`` or ``other``.
        mode: permission bits.
        mtime: seconds since the epoch.
        offset: where the data stand in a file.
        data: of a file; the target of a link.
        last: the file, or what else it is, is complete with this piece.
    """

    path: bytes
    kind: str
    mode: int = 0o644
    mtime: float = 0.0
    offset: int = 0
    data: bytes = b""
    last: bool = True


class AgentEnd(msgspec.Struct, frozen=True, array_like=True):
    """How the agent of a host ended. `code` is as `subprocess.Popen` has it."""

    attempt: int
    code: int
    how: str


class HostReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a host is.

    Attributes:
        process: 16 random bytes of this supervisor.
        number: of this report, counted by it from 1.
        leader: those of the leader's that it has heard last; of another one nothing counts but that it is here.
        prepared: attempt for which it is prepared.
        begun: the last attempt whose agent it has started.
        ended: the last attempt that is over on it.
        agent: how its agent ended in the last attempt, None while it runs.
        trouble: why it could not do what was wanted; None if nothing was wrong.
        trouble_in: in which attempt.
        leaving: its platform ends it: why, in words.
        pieces: of its record, under the names that they have in the leader's.
        tree: of what it made.
        delivered: with this report the leader has all.
        asks_sizes: it wants to know how much of its record the leader has.
        fresh: nothing of its directory was ever sent: it takes the place of a machine that was lost, or is the first.
        more: it has more to send, and waits for nothing else.
    """

    process: bytes
    number: int = 0
    leader: bytes = b""
    prepared: int = 0
    begun: int = 0
    ended: int = 0
    agent: AgentEnd | None = None
    trouble: Cause | None = None
    trouble_in: int = 0
    leaving: str = ""
    pieces: tuple[tuple[Piece, bytes], ...] = ()
    tree: tuple[TreePiece, ...] = ()
    delivered: bool = False
    asks_sizes: bool = False
    fresh: bool = False
    more: bool = False


class LeaderOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the leader's supervisor wants of a host.

    Attributes:
        leader: 16 random bytes of this supervisor.
        phase: what to do.
        attempt: in which attempt.
        variables: for its agent: what is used up already of time and money.
        now: a person wants the job to stop at once: nothing is brought to safety.
        sizes: how much of the host's record is here, by name; None when nobody asked.
        missing: bytes are missing before a piece that came: sizes are to be asked for.
        taken: everything is here; the host may go.
    """

    leader: bytes
    phase: Phase = Phase.PREPARE
    attempt: int = 1
    variables: dict[str, str] = {}
    now: bool = False
    sizes: dict[str, int] | None = None
    missing: bool = False
    taken: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode_report = msgspec.msgpack.Decoder(HostReport).decode
_decode_order = msgspec.msgpack.Decoder(LeaderOrder).decode


def encode(message: HostReport | LeaderOrder) -> bytes:
    """Returns the body of a frame."""
    return _encode(message)


def decode_report(body: bytes) -> HostReport:
    """Reads the body of a host's frame. Raises Refused."""
    try:
        return _decode_report(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(f"not a report of a supervisor: {error}") from None


def decode_order(body: bytes) -> LeaderOrder:
    """Reads the body of the leader's frame. Raises Refused."""
    try:
        return _decode_order(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(f"not an order of the leader's supervisor: {error}") from None
