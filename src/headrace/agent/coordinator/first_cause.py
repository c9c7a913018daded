"""Which of several failures was the first: a pure function.

When one rank fails, the others fail within moments, because they lose their peer. The user is told which one failed
first. The coordinator collects failures for `WINDOW` seconds from the first one, then chooses:

0. A host that its platform ends comes before everything: its programs and their peers end because of that.
1. What ends without an error of its own comes first: a host that was lost, a feed without servers, a program that was
   killed by a signal from outside (SIGKILL, SIGSEGV, SIGBUS, ...). The death of a peer never causes a SIGKILL.
2. Then exit codes, and SIGABRT, which a program sends to itself (a watchdog that lost its peer, a C++ exception).
3. Then exits of the second kind whose last lines report a lost connection. A rank that raised closes its
   connections before its process has ended, so a peer may well end before it; time alone would blame the peer.
   When there is nothing better, and a rank of that world had left with exit code 0 before, that one is the cause.
4. Last, exit codes of what only starts ranks, mpirun and its daemons: they end because a rank did, unless there is
   no other failure. Then their own error is the cause.

Within a kind the earliest time counts, as the clock of the program's own host showed it. Hosts of a cluster agree to
a few milliseconds (NTP); a rank needs longer than that to notice a peer's death and to end.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from headrace.agent.control.control_messages import SHOWN_LINES, Exited
from headrace.agent.coordinator.error_line import error_line
from headrace.agent.program_specs import is_launcher
from headrace.instance.frameworks import world_size
from headrace.instance.launch_plan import LaunchPlan
from headrace.runs.cause import Cause, CauseKind
from headrace.runs.run_paths import AGENT

WINDOW = 0.5
_OWN_SIGNALS = frozenset({signal.SIGABRT, signal.SIGPIPE})
_COLLECTIVE = (
    "collective ops is aborted",
    "connection closed by peer",
    "disterror",
    "distbackenderror",
    "distnetworkerror",
    "diststoreerror",
    "gloo/transport",
    "horovod has been shut down",
    "ncclremoteerror",
    "remote process exited",
    "workerslost",
)
_LOST_PEER = (
    *_COLLECTIVE,
    "connection reset by peer",
    "connection refused",
    "connection was closed",
    "broken pipe",
    "socket closed",
    "timed out waiting",
)


class SuspectKind(IntEnum):
    """How likely a failure is the first one; the smallest number is the likeliest."""

    PLATFORM = 0
    SILENT = 1
    OWN_WORD = 2
    LOST_PEER = 3
    LAUNCHER = 4


@dataclass(frozen=True)
class Suspect:
    """A failure that may be the first."""

    kind: SuspectKind
    at: float
    cause: Cause


def exit_suspect(group: str, host: str, end: Exited) -> Suspect:
    """Returns the suspect for a program of a host that ended otherwise than with exit code 0."""
    launcher, last_lines = is_launcher(end.stream), end.last_lines[-SHOWN_LINES:]
    cause = end.cause or Cause(CauseKind.PROGRAM_EXITED)
    if launcher:
        said = launcher_error(last_lines)
    else:
        said = error_line(end.last_lines, end.exit_code, end.signal) if cause.kind is CauseKind.PROGRAM_EXITED else ""
    cause = msgspec.structs.replace(
        cause,
        detail=": ".join(filter(None, (cause.detail, said))),
        group=group,
        host=host,
        stream=end.stream,
        exit_code=end.exit_code,
        signal=end.signal,
        last_lines=last_lines,
    )
    if launcher and end.exit_code is not None:
        kind = SuspectKind.LAUNCHER
    elif end.signal is not None and end.signal not in _OWN_SIGNALS:
        kind = SuspectKind.SILENT
    elif lost_peer(last_lines):
        kind = SuspectKind.LOST_PEER
    else:
        kind = SuspectKind.OWN_WORD
    return Suspect(kind, end.at, cause)


def leaving_suspect(group: str, host: str, signal_name: str, at: float) -> Suspect:
    """Returns the suspect for a host that its platform ends.

    Args:
        group, host: which.
        signal_name: of the signal that its agent got.
        at: when that was known.
    """
    how = f"its agent was told to end by {signal_name}, by the platform"
    return Suspect(SuspectKind.PLATFORM, at, Cause(CauseKind.HOST_LOST, how, group, host, AGENT, infrastructure=True))


def launcher_error(last_lines: Iterable[str]) -> str:
    """Returns what a launcher printed last as its error, for people; empty if it printed none."""
    errors = [line.removeprefix("error: ") for line in last_lines if line.startswith("error: ")]
    return errors[-1] if errors else ""


def lost_peer(last_lines: Iterable[str]) -> bool:
    """Tells whether a program's last lines report a lost connection."""
    return _says(last_lines, _LOST_PEER)


def _says(last_lines: Iterable[str], texts: Iterable[str]) -> bool:
    said = "\n".join(last_lines).lower()
    return any(text in said for text in texts)


def with_early_leaver(plan: LaunchPlan, first: Suspect, exits: Mapping[str, Mapping[str, Exited]]) -> Cause:
    """Returns the cause of a job's end, with the rank that left with exit code 0 while its world still needed it.

    That rank is the cause where the failure can have no other: of a collective operation, or of mpirun while ranks ran.
    A connection may also have been one to something else: then a note names it.

    Args:
        plan: the launch plan.
        first: the first failure.
        exits: what ended on each host, by stream.
    """
    cause = first.cause
    world = plan.distribution_of(cause.group) if cause.group else None
    if (
        first.kind not in {SuspectKind.LOST_PEER, SuspectKind.LAUNCHER}
        or world is None
        or not (cause.exit_code or cause.signal)
    ):
        return cause
    ends = [
        (host, end) for host in plan.hosts_of(world) for end in exits.get(host, {}).values() if end.stream.isdecimal()
    ]
    well = [(host, end) for host, end in ends if end.exit_code == 0 and not end.stopped]
    early = [(host, end) for host, end in well if end.at <= first.at]
    if not early or len(well) == world_size(plan, plan.hosts_of(world)[0]):
        return cause
    host, end = min(early, key=lambda each: each[1].at)
    leaver = Cause(
        CauseKind.PROGRAM_EXITED,
        "it left while others of its world still needed it",
        plan.host(host).group,
        host,
        end.stream,
        exit_code=0,
        last_lines=end.last_lines[-SHOWN_LINES:],
        then=cause,
    )
    if first.kind is SuspectKind.LAUNCHER or _says(cause.last_lines, _COLLECTIVE):
        return leaver
    return msgspec.structs.replace(cause, note=f"{leaver.place} had left before, with exit code 0")


def first_of(suspects: Sequence[Suspect]) -> Suspect:
    """Returns the first failure. Raises ValueError when there is none."""
    return min(suspects, key=lambda suspect: (suspect.kind, suspect.at))
