"""The metrics of a run: typed records, one JSON object a line, about one line a second, summed at the source.

`LoaderSecond` is written by a training process (headrace.feed's DataLoader, any loader wrapped by `headrace.track`, a
framework's callback) into the file named by HEADRACE_METRICS, `WorkerSecond` by a feed server, and by a training
process that has data workers of its own; the feed is a library of its own and writes the same fields without importing
this module. `HostSecond`, `ValueSecond` and `ServiceSecond` are written by the host's agent.

Fields with a default came later than the others: a record without them says that they were not measured.
"""

from __future__ import annotations

import msgspec


class LoaderSecond(msgspec.Struct, frozen=True, kw_only=True, tag_field="metric", tag="loader"):
    """What one loader delivered in about one second.

    A step lasts from one `next()` call to the following one of the same epoch; the last step of an epoch ends when
    the loop asks for a batch that does not come, or a framework says that it is done. Nothing between epochs is
    counted, nor what a framework's validation takes. Copies run beside the computation, one batch ahead, so that
    wait + h2d + compute may be more than step; what is less than step is the loop's own, in Python.

    Attributes:
        t: end of the window's last step, seconds since the epoch, UTC.
        loader: name of the loader, e.g. ``train``.
        epoch: number of the epoch.
        steps: steps that ended in this window.
        samples: rows of these steps' batches.
        wait: seconds in `next()`, of these steps; with ``num_workers=0`` the batch is made there.
        step: seconds that these steps lasted, `wait` included.
        step_min, step_max: shortest and longest of these steps, seconds.
        bytes: payload bytes of these steps' batches.
        h2d: seconds that headrace's copies of these steps' batches to a CUDA device took, by events on their stream;
            None where it does not copy. A copy of the user's own is part of `compute`.
        compute: seconds of the device's time, from where a batch was handed over to the end of the work that was
            submitted until the following `next()`, by CUDA events on the current stream; None without CUDA, or when a
            step of these could not be measured. Then what is left of `step` after `wait` and `h2d` is the compute time.
        queue: batches that were ready when `next()` was called, mean over those of these steps that counted it (at
            most 100 a second); None for a foreign loader.
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
    h2d: float | None = None
    compute: float | None = None
    queue: float | None = None


class WorkerSecond(msgspec.Struct, frozen=True, kw_only=True, tag_field="metric", tag="worker"):
    """What the data workers of one feed server, or of one rank's loader, did in about one second.

    The time of an executor is spent in three ways, so produce + blocked + idle = executors * seconds.

    In the feed the loader asks, and for no more than its window holds. So an executor is seldom blocked, and idle as
    soon as every batch that may be asked for is ready: idle (or blocked) executors while the ranks hardly wait say
    that the trainer is the slower one. Idle executors while the ranks wait say that the asks come late: the way there
    and back, or the rank's own Python, is slow.

    Attributes:
        t: end of the window, seconds since the epoch, UTC.
        seconds: its length.
        loader: the rank's loader whose local workers these are; empty for a feed server.
        executors: worker processes.
        produce: executor seconds spent on making samples.
        blocked: executor seconds without a slice while results of this server waited for the network to take them, or
            slices for memory to put their results in; each such result or slice counts for one executor. What the
            kernel has taken (its buffer holds some MB a connection) waits no more here, but counts in `sending`. Of a
            rank's own workers: while the user holds so many batches that there is no memory for further ones.
        idle: all other executor seconds: nobody asked. Between the passes over a loader its own workers are idle too.
        cpu: CPU seconds (user + system) of the executors in this window.
            Of one that ended in this window nothing is seen.
        slices, samples, bytes: what was made: answers, rows, payload bytes. Rows that were made twice, because they
            were late or to compare them, count twice.
        sent: bytes that left through TCP, headings included; 0 for local workers, and for clients on the same host.
        sending: seconds in which the busiest of these connections had bytes on their way that the receiver had room
            for (TCP_INFO: busy_time - rwnd_limited), at most `seconds`.
    """

    t: float
    seconds: float
    loader: str = ""
    executors: int
    produce: float
    blocked: float
    idle: float
    cpu: float
    slices: int
    samples: int
    bytes: int
    sent: int = 0
    sending: float = 0.0


class GpuUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one GPU did, as NVML tells it.

    Attributes:
        index: number of the device on this host.
        name: of its model.
        use: share of the last sample period in which a kernel ran, 0 to 100; None where it cannot be read (MIG).
        memory, memory_total: bytes.
        power: watts, None where it cannot be read.
    """

    index: int
    name: str
    use: float | None
    memory: int
    memory_total: int
    power: float | None = None


class HostSecond(msgspec.Struct, frozen=True, kw_only=True, tag_field="metric", tag="host"):
    """What one host's processes used.

    Attributes:
        t: seconds since the epoch, UTC.
        cpu: CPU seconds (user + system) of all processes of the host since its start, ended ones included.
        cores: CPUs that the host may use.
        rss: resident bytes of its live processes, shared pages counted once a process.
        processes: live processes.
        memory: bytes of memory that the host may use.
        used: bytes of it that are in use, without the cache of files, each shared page once; None where the host has
            no control group of its own, then `rss` is all that is known.
        received, sent: bytes through the host's network devices since its start, loopback excluded; None where the
            host has no network of its own.
        read, written: bytes that its processes moved from and to disks since its start.
        gpus: its GPUs.
    """

    t: float
    cpu: float
    cores: int
    rss: int
    processes: int
    memory: int | None = None
    used: int | None = None
    received: int | None = None
    sent: int | None = None
    read: int | None = None
    written: int | None = None
    gpus: tuple[GpuUse, ...] = ()


class ValueSecond(msgspec.Struct, frozen=True, kw_only=True, tag_field="metric", tag="value"):
    """A figure that the job's metric definitions found in a program's log, summed up over about one second.

    Attributes:
        t: end of the window, seconds since the epoch, UTC.
        name: of the metric definition.
        stream: the program that printed it: a rank's number.
        count: how many were found.
        last, low, high, total: the last, least and greatest of them, and their sum.
    """

    t: float
    name: str
    stream: str
    count: int
    last: float
    low: float
    high: float
    total: float


class ServiceSecond(msgspec.Struct, frozen=True, kw_only=True, tag_field="metric", tag="service"):
    """What one server of tf.data.service used.

    Attributes:
        t: seconds since the epoch, UTC.
        stream: its name on its host, e.g. ``tf-worker-0``.
        role: ``dispatcher`` or ``worker``.
        cpu: CPU seconds (user + system) of its process since the start of that process.
        rss: resident bytes.
        restarts: how often it was started again; with each, `cpu` begins at 0.
        tasks: of a worker: pipelines that it runs; None where TensorFlow does not tell.
        workers: of a dispatcher: workers that have registered; None where TensorFlow does not tell.
        sent: of a worker: bytes that its port has sent to trainers since the start of its process, without those of
            the last second before a connection was closed; with each start it begins at 0.
    """

    t: float
    stream: str
    role: str
    cpu: float
    rss: int
    restarts: int = 0
    tasks: int | None = None
    workers: int | None = None
    sent: int | None = None


Metric = LoaderSecond | WorkerSecond | HostSecond | ValueSecond | ServiceSecond
"""Any metric; `msgspec.json.decode(line, type=Metric)` reads one."""
