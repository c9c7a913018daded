"""Reads what earlier versions of headrace recorded as sentences.

In version 1 of the record a cause was a sentence (`reason`), and what the search for metrics left out was only
in the agent's log. This is the only module that looks at such text. It knows the sentences as they were written then,
so it never changes when today's words do. A sentence that it does not know becomes a cause of kind UNKNOWN with that
sentence as its detail; what `cause_text` says of a cause from here is always the sentence of the record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.runs.cause import Cause, CauseKind
from headrace.runs.log_lines import LogLine

_WHOLE = {
    "stopped by the user": CauseKind.STOPPED,
    "the engine was killed": CauseKind.ENGINE_FAILED,
    "the coordinator ended without a verdict": CauseKind.COORDINATOR_LOST,
}
_BEGINNINGS = {
    "MaxRuntimeExceeded: ": CauseKind.MAX_RUN,
    "BudgetExceeded: ": CauseKind.BUDGET,
    "stalled: ": CauseKind.STALLED,
    "killed by the kernel for memory (OOM): ": CauseKind.OUT_OF_MEMORY,
}
_THEN_STALLED = "; stalled: "
_EXITED = re.compile(r"(?:exited with code \d+|killed by (?:SIG\w+|signal \d+))(?:: (.*))?", re.DOTALL)

_LEFT_OUT = "metric definition"
_FIRST = " (told once, counted at the end)"


class _OldCause(msgspec.Struct, frozen=True):
    """A cause of version 1."""

    reason: str | None = None
    group: str = ""
    host: str = ""
    stream: str = ""
    exit_code: int | None = None
    signal: int | None = None
    last_lines: tuple[str, ...] = ()
    infrastructure: bool = False


class _OldEnd(msgspec.Struct, frozen=True):
    """The part of `job_finished` and `run_finished` that has changed since version 1."""

    cause: _OldCause


_decode = msgspec.json.Decoder(_OldEnd).decode


def read_cause(line: bytes) -> Cause | None:
    """Returns the cause of an event of version 1; None when the event is of another version.

    Args:
        line: the event's line.

    Raises:
        msgspec.DecodeError: the event has no cause.
    """
    old = _decode(line).cause
    if old.reason is None:
        return None
    place: dict[str, Any] = {
        "group": old.group,
        "host": old.host,
        "stream": old.stream,
        "exit_code": old.exit_code,
        "signal": old.signal,
        "last_lines": old.last_lines,
        "infrastructure": old.infrastructure,
    }
    if old.reason in _WHOLE:
        return Cause(_WHOLE[old.reason], old.reason, **place)
    for beginning, kind in _BEGINNINGS.items():
        if old.reason.startswith(beginning):
            return Cause(kind, old.reason.removeprefix(beginning), **place)
    missing, waits, stalled = old.reason.partition(_THEN_STALLED)
    if waits:  # a server of tf.data.service was gone, and the job waited for it
        return Cause(CauseKind.DATA_SERVICE_LOST, missing, **place, then=Cause(CauseKind.STALLED, stalled))
    exited = _EXITED.fullmatch(old.reason)
    if exited and (old.exit_code is not None or old.signal is not None):
        return Cause(CauseKind.PROGRAM_EXITED, exited[1] or "", **place)
    return Cause(CauseKind.UNKNOWN, old.reason, **place)


def left_out(lines: Iterable[LogLine]) -> tuple[str, ...]:
    """Returns what the search for metrics left out in a run of version 1, in the words of its agents.

    Args:
        lines: the agents' logs.
    """
    told = [(str(line.stream), line.text) for line in lines if line.text.startswith(_LEFT_OUT)]
    counted = [(host, text) for host, text in told if not text.endswith(_FIRST)]
    for host, text in told:
        what = text.removesuffix(_FIRST).removeprefix(f"{_LEFT_OUT}s: ").partition(", the first: ")[0]
        if text.endswith(_FIRST) and not any(where == host and what in each for where, each in counted):
            counted.append((host, text.removesuffix(_FIRST)))
    return tuple(f"{host}: {text}" for host, text in counted)
