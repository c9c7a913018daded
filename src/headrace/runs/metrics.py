"""The metrics of a run: typed records, one JSON object a line, about one line a second, summed at the source.

`LoaderSecond` is written by a training process (headrace.feed's DataLoader, or any loader wrapped by
`headrace.track`) into the file named by HEADRACE_METRICS; the feed is a library of its own and writes the same
fields without importing this module. `HostSecond` is written by the host's agent.
"""

from __future__ import annotations

import msgspec


class LoaderSecond(msgspec.Struct, frozen=True, kw_only=True, tag_field="metric", tag="loader"):
    """What one loader delivered in about one second.

    A step lasts from one `next()` call to the following one of the same epoch; the last step of an epoch ends when
    the loop asks for a batch that does not come. So step = wait + compute, and nothing between epochs is counted.

    Attributes:
        t: end of the window, seconds since the epoch, UTC.
        loader: name of the loader, e.g. ``train``.
        epoch: number of the epoch.
        steps: steps that ended in this window.
        samples: rows of these steps' batches.
        wait: seconds blocked in `next()`, of these steps.
        step: seconds that these steps lasted, `wait` included.
        step_min, step_max: shortest and longest of these steps, seconds.
        bytes: payload bytes of these steps' batches.
    """

    t: float
    loader: str
    epoch: int
    steps: int
    samples: int
    wait: float
    step: float
    step_min: float
    step_max: float
    bytes: int


class HostSecond(msgspec.Struct, frozen=True, kw_only=True, tag_field="metric", tag="host"):
    """What one host's processes used.

    Attributes:
        t: seconds since the epoch, UTC.
        cpu: CPU seconds (user + system) of all processes of the host since its start, ended ones included.
        cores: CPUs that the host may use.
        rss: resident bytes of its live processes, shared pages counted once a process.
        processes: live processes.
    """

    t: float
    cpu: float
    cores: int
    rss: int
    processes: int


Metric = LoaderSecond | HostSecond
"""Any metric; `msgspec.json.decode(line, type=Metric)` reads one."""
