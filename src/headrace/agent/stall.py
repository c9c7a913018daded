"""Whether a job stands still: no line, no metric and no batch for a long time. A pure function.

At the end of an epoch TensorFlow's client waits without end for a worker of tf.data.service that is gone. So when one
is gone for good, a job without a limit of its own has `GONE_LIMIT`: it goes on if it can, and ends soon if it cannot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from headrace.agent.hoststate import HostState
from headrace.runs.events import Cause

GONE_LIMIT = 60.0  # seconds without any sign, while a server of tf.data.service is gone for good
_NAMED = 4  # programs that the cause names


@dataclass(frozen=True)
class Missing:
    """A server of tf.data.service that does not serve.

    Attributes:
        since: when it went, on the coordinator's clock.
        for_good: whether it is not started again.
        cause: names it.
    """

    since: float
    for_good: bool
    cause: Cause


def stalled(hosts: Iterable[HostState], limit: float, now: float, missing: Missing | None = None) -> Cause | None:
    """Returns why the job counts as stalled, None if it does not.

    One program that shows a sign of life is enough: ranks wait for each other, and often only one of them writes.

    Args:
        hosts: those of the completion groups.
        limit: seconds without any sign; 0 means none.
        now: the time on the coordinator's clock.
        missing: a server of tf.data.service that does not serve.
    """
    if missing is not None and missing.for_good:
        limit = min(limit or GONE_LIMIT, GONE_LIMIT)
    if not limit:
        return None
    running: list[tuple[float, HostState, str]] = []
    last = missing.since if missing else 0.0
    for host in hosts:
        if not host.started:
            return None  # it waits for another group, and that has a limit of its own
        for stream in host.streams:
            done = host.exits.get(stream)
            sign = max(host.started, host.signs.get(stream, 0.0), done.at if done else 0.0)
            last = max(last, sign)
            if done is None:
                running.append((sign, host, stream))
    if not running or now - last <= limit:
        return None
    running.sort(key=lambda each: each[0])
    named = ", ".join(f"{host.place}[{stream}] ({now - sign:.0f} s)" for sign, host, stream in running[:_NAMED])
    more = f" and {len(running) - _NAMED} more" if len(running) > _NAMED else ""
    _, host, stream = running[0]
    reason = f"stalled: no output or metrics for {limit:g} s; the quietest: {named}{more}"
    if missing is not None:
        return msgspec.structs.replace(missing.cause, reason=f"{missing.cause.reason}; {reason}")
    return Cause(reason, host.group, host.name, stream)
