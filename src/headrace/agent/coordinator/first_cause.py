"""Which of several failures was the first: a pure function.

When one rank fails, the others follow within moments, because they lose their peer. What is told to the user is the
one that began it. The coordinator collects failures for `WINDOW` seconds from the first one, then chooses:

1. What ends without a word of its own began it: a host that was lost, a feed that nobody serves any more, a program
   that was killed by a signal that others send (SIGKILL, SIGSEGV, SIGBUS, ...). No program falls to SIGKILL because
   its peer died.
2. Then exit codes, and SIGABRT, which a program sends to itself (a watchdog that lost its peer, a C++ exception).
3. Then exits of the second kind whose last lines complain of a lost connection. A rank that raised closes its
   connections before its process has ended, so a peer may well end before it; time alone would blame the peer.
4. Last, exit codes of what only starts ranks, mpirun and its daemons: they end because a rank did, unless there is
   nothing else to blame. Then their own error is the cause.

Within a kind the earliest time counts, as the clock of the program's own host showed it. Hosts of a cluster agree to
a few milliseconds (NTP); a rank needs longer than that to notice a peer's death and to end.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from headrace.agent.control.control_messages import Exited
from headrace.agent.program_specs import is_launcher
from headrace.runs.cause import Cause, CauseKind

WINDOW = 0.5
_OWN_SIGNALS = frozenset({signal.SIGABRT, signal.SIGPIPE})
_LOST_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "connection was closed",
    "broken pipe",
    "disterror",
    "distbackenderror",
    "distnetworkerror",
    "diststoreerror",
    "remote process exited",
    "socket closed",
    "timed out waiting",
    "workerslost",
)


class Kind(IntEnum):
    """How much a failure looks like the beginning; smaller is more."""

    SILENT = 1
    OWN_WORD = 2
    LOST_PEER = 3
    LAUNCHER = 4


@dataclass(frozen=True)
class Suspect:
    """A failure that may be the first."""

    kind: Kind
    at: float
    cause: Cause


def exit_suspect(
    *,
    group: str,
    host: str,
    stream: str,
    at: float,
    exit_code: int | None,
    number: int | None,
    last_lines: Sequence[str] = (),
    launcher: bool = False,
    cause: Cause | None = None,
) -> Suspect:
    """Returns the suspect that a program is which ended with another result than exit code 0.

    Args:
        group, host, stream: where.
        at: when it ended, seconds since the epoch.
        exit_code, number: its exit code, or the signal that killed it.
        last_lines: its last output.
        launcher: whether it only starts ranks.
        cause: how it ended, when more is known than code and signal.
    """
    cause = cause or Cause(CauseKind.PROGRAM_EXITED)
    error = launcher_error(last_lines) if launcher else ""
    cause = msgspec.structs.replace(
        cause,
        detail=": ".join(filter(None, (cause.detail, error))),
        group=group,
        host=host,
        stream=stream,
        exit_code=exit_code,
        signal=number,
        last_lines=tuple(last_lines),
    )
    if launcher and exit_code is not None:
        return Suspect(Kind.LAUNCHER, at, cause)
    if number is not None and number not in _OWN_SIGNALS:
        kind = Kind.SILENT
    elif lost_peer(last_lines):
        kind = Kind.LOST_PEER
    else:
        kind = Kind.OWN_WORD
    return Suspect(kind, at, cause)


def suspect_of(group: str, host: str, end: Exited) -> Suspect:
    """Returns the suspect that an ended program of a host is. See `exit_suspect`."""
    return exit_suspect(
        group=group,
        host=host,
        stream=end.stream,
        at=end.at,
        exit_code=end.exit_code,
        number=end.signal,
        last_lines=end.last_lines,
        launcher=is_launcher(end.stream),
        cause=end.cause,
    )


def launcher_error(last_lines: Iterable[str]) -> str:
    """Returns what a launcher printed last as its error, for people; empty if it printed none."""
    errors = [line.removeprefix("error: ") for line in last_lines if line.startswith("error: ")]
    return errors[-1] if errors else ""


def lost_peer(last_lines: Iterable[str]) -> bool:
    """Tells whether a program's last words complain of a lost connection."""
    text = "\n".join(last_lines).lower()
    return any(words in text for words in _LOST_PEER)


def first_of(suspects: Sequence[Suspect]) -> Suspect:
    """Returns the suspect that began it. Raises ValueError when there is none."""
    return min(suspects, key=lambda suspect: (suspect.kind, suspect.at))
