"""The metrics of a run: typed records, one JSON object a line, about one line a second, summed at the source.

`LoaderSecond` is written by a training process (headrace.feed's DataLoader, any loader wrapped by `headrace.track`, a
framework's callback) into the file named by HEADRACE_METRICS, `WorkerSecond` by a feed server, and by a training
process that has data workers of its own, `ValueSecond` and `ValueNotFinite` by `headrace.log` and the host's agent:
`headrace.feed_metrics` defines them. `HostSecond` and `ServiceSecond` are written by the agent; `PlatformMinute` by an
engine, out of what its platform measured.

Fields with a default came later than the others: a record without them says that they were not measured.
"""

from __future__ import annotations

import msgspec

from headrace.feed_metrics import LoaderSecond, ValueNotFinite, ValueSecond, WorkerSecond


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
        busy: CPU seconds that these were not idle since the machine's start, whoever used them, with those that its
            hypervisor gave to others.
        rss: resident bytes of its live processes, shared pages counted once a process.
        processes: live processes.
        memory: bytes of memory that the host may use.
        used: bytes of it that are in use, without the cache of files, each shared page once; None where the host has
            no control group of its own, then `rss` is all that is known.
        received, sent: bytes through the host's network devices since its start, loopback excluded; None where the
            host has no network of its own.
        read, written: bytes that its processes moved from and to disks since its start.
        gpus: its GPUs.
        disk: share of the file system of its /opt/ml that is in use, 0 to 100.
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
    disk: float | None = None
    busy: float | None = None


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


class PlatformMinute(msgspec.Struct, frozen=True, kw_only=True, tag_field="metric", tag="platform", omit_defaults=True):
    """What a platform measured of one host from outside, on average over a stretch of time.

    It is the second source: it is there where the host's own records are not.

    Attributes:
        t: beginning of the stretch, seconds since the epoch, UTC.
        seconds: its length.
        source: who measured it, e.g. ``CloudWatch``.
        cpu: busy share of a CPU, all CPUs of the host added up, %; 200 are two of them.
        memory: share of its memory that was used, %.
        gpu: busy share of a GPU, all of the host added up, %.
        gpu_memory: used share of the memory of a GPU, likewise.
        disk: used share of its disk, %.
    """

    t: float
    seconds: float
    source: str
    cpu: float | None = None
    memory: float | None = None
    gpu: float | None = None
    gpu_memory: float | None = None
    disk: float | None = None


Metric = LoaderSecond | WorkerSecond | HostSecond | ValueSecond | ValueNotFinite | ServiceSecond | PlatformMinute
"""Any metric; `msgspec.json.decode(line, type=Metric)` reads one."""
