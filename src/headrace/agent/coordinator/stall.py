"""Whether a job is stalled: no line, no metric and no batch for a long time. A pure function.

At the end of an epoch TensorFlow's client waits without end for a worker of tf.data.service that is gone. So when one
is gone for good, a job also ends when nothing is printed or measured for `GONE_LIMIT` seconds while nothing works: no
other worker sends data, and no host uses its CPUs or GPUs (see `activity`). A training that works silently goes on.
Ranks that wait for another one may spin, and look busy: a job without a limit of its own has `SPIN_LIMIT` seconds in
which nothing is printed, measured or sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from headrace.agent.coordinator.host_state import HostState
from headrace.agent.metrics.activity import BUSY_CORES
from headrace.runs.cause import Cause, CauseKind

GONE_LIMIT = 60.0  # seconds without any sign or work, while a server of tf.data.service is gone for good
SPIN_LIMIT = 600.0  # seconds without any sign or data, then
_NAMED = 4  # programs that the cause names


@dataclass(frozen=True)
class Missing:
    """A server of tf.data.service that does not serve.

    Attributes:
        since: when it was lost, on the coordinator's clock.
        for_good: whether it is not started again.
        cause: its end, with its place.
        worked, sent: when any host last worked, and any worker last sent data, see `headrace.agent.metrics.activity`.
    """

    since: float
    for_good: bool
    cause: Cause
    worked: float
    sent: float


def stalled(hosts: Sequence[HostState], limit: float, now: float, missing: Missing | None = None) -> Cause | None:
    """Returns why the job counts as stalled, None if it does not.

    One program that shows a sign of life is enough: ranks wait for each other, and often only one of them writes.

    Args:
        hosts: those of the completion groups.
        limit: seconds without any sign; 0 means none.
        now: the time on the coordinator's clock.
        missing: a server of tf.data.service that does not serve.
    """
    if not limit and (missing is None or not missing.for_good):
        return None
    if not all(host.started for host in hosts):
        return None  # one waits for another group, and that has a limit of its own
    signs = [(sign, host, stream, done) for host in hosts for sign, stream, done in _signs(host)]
    last = max(missing.since if missing else 0.0, 0.0, *(sign for sign, *_ in signs))
    if now - last <= min(seconds for seconds in (limit, GONE_LIMIT if missing else 0.0) if seconds):
        return None
    running = sorted(((sign, host, stream) for sign, host, stream, done in signs if not done), key=lambda each: each[0])
    if not running:
        return None
    silence = f"no output or metrics for {{:g}} s; the quietest: {_named(running, now)}"
    if limit and now - last > limit:
        detail = silence.format(limit)
    elif missing is None or not missing.for_good:
        return None
    elif now - max(last, missing.sent, missing.worked) > GONE_LIMIT:
        detail = (
            f"{silence.format(GONE_LIMIT)}; in that time no worker of tf.data.service sent anything "
            f"(the last {now - missing.sent:.0f} s ago), and no host used {BUSY_CORES:.0%} of a core or a GPU "
            f"(the last {now - missing.worked:.0f} s ago)"
        )
    elif not limit and now - max(last, missing.sent) > SPIN_LIMIT:
        detail = (
            f"{silence.format(SPIN_LIMIT)}; in that time no worker of tf.data.service sent anything "
            f"(the last {now - missing.sent:.0f} s ago), though processes used CPUs or GPUs"
        )
    else:
        return None
    if missing is not None:
        return msgspec.structs.replace(missing.cause, then=Cause(CauseKind.STALLED, detail))
    _, host, stream = running[0]
    return Cause(CauseKind.STALLED, detail, host.group, host.name, stream)


def _signs(host: HostState) -> Iterator[tuple[float, str, bool]]:
    """Yields the last sign of life of each program of a host, its name, and whether it has ended."""
    for stream in host.streams:
        done = host.exits.get(stream)
        yield max(host.started, host.signs.get(stream, 0.0), done.at if done else 0.0), stream, done is not None


def _named(running: Sequence[tuple[float, HostState, str]], now: float) -> str:
    named = ", ".join(f"{host.place}[{stream}] ({now - sign:.0f} s)" for sign, host, stream in running[:_NAMED])
    return f"{named} and {len(running) - _NAMED} more" if len(running) > _NAMED else named
