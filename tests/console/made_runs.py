"""Runs made up in the run layout: for the tests of the page, its pictures and its measurement. No job ran."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from headrace.runs import (
    Cause,
    CauseKind,
    Event,
    GpuUse,
    HostSecond,
    LoaderSecond,
    Metric,
    RunPaths,
    Status,
    Stream,
    ValueSecond,
    WorkerSecond,
    create_run,
)
from headrace.runs.events import (
    DataWorkerLost,
    FeedReady,
    HostRegistered,
    HostReleased,
    HostStarted,
    InstancesStarted,
    JobFinished,
    JobStarted,
    JobStopping,
    ProgramExited,
    ProgramStarted,
    RunFinished,
    SecondaryStatus,
    StatusChanged,
)

START = 1_795_201_200.0  # 2026-11-20 19:00:00 UTC
DATA, DNN = "data_group", "dnn_group"
_ENCODE = msgspec.json.Encoder().encode


def write_lines(path: Path, records: Iterable[Event | Metric]) -> None:
    """Writes records as one file, as a writer would have, in one go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(_ENCODE(record) + b"\n" for record in records))


def write_log(path: Path, lines: Iterable[tuple[float, str, str]]) -> None:
    """Writes (time, kind, text) as a log file."""
    import time

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for t, kind, text in lines:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(t))
            file.write(f"{stamp}.{int(t * 1_000_000) % 1_000_000:06d}Z {kind} {text}\n")


def plan(paths: RunPaths, groups: dict[str, tuple[str, Sequence[str]]]) -> None:
    """Writes the part of plan.json that is read after a run: groups with type and hosts."""
    listed = [{"name": name, "instance_type": kind, "hosts": list(hosts)} for name, (kind, hosts) in groups.items()]
    (paths.root / "plan.json").write_text(json.dumps({"groups": listed, "completion_groups": [DNN]}))


def make_run(
    runs: Path,
    name: str = "resnet-heterogeneous",
    *,
    created: float = START,
    seconds: int = 600,
    data_hosts: int = 2,
    steps_a_second: float = 8.0,
    starved: bool = False,
    status: Status | None = Status.COMPLETED,
    faults: bool = True,
    log_every: float = 2.0,
    seed: int = 1,
) -> RunPaths:
    """Makes a run of two GPU hosts, with two ranks each, and some data hosts.

    Args:
        runs: where.
        name: of its job.
        created: seconds since the epoch.
        seconds: that it trained.
        data_hosts: hosts of the data group; 0 for a homogeneous run.
        steps_a_second: of a rank.
        starved: the ranks wait for data half of the time.
        status: how it ended; None while it goes on.
        faults: a data worker is lost and replaced in the middle.
        log_every: seconds between two lines of a rank.
        seed: of the noise.
    """
    chance = random.Random(seed)
    paths = create_run(name, runs=runs, created=created)
    data = [f"algo-{index + 1}" for index in range(data_hosts)]
    dnn = [f"algo-{data_hosts + index + 1}" for index in range(2)]
    types = ({DATA: ("ml.c5.4xlarge", data)} if data else {}) | {DNN: ("ml.g5.12xlarge", dnn)}
    plan(paths, types)
    begin, end = created + 9.0, created + 9.0 + seconds
    middle = begin + seconds * 0.55 if faults and data else math.inf
    _events(paths, data, dnn, created, begin, end, middle, status)
    for index, host in enumerate(dnn):
        host_stream = Stream(DNN, host, "host")
        write_lines(
            paths.metrics(host_stream), _host(chance, begin, seconds, cores=48, busy=0.16, gpus=2, starved=starved)
        )
        for local in range(2):
            rank = str(2 * index + local)
            stream = Stream(DNN, host, rank)
            seconds_of = _loader(chance, begin, seconds, steps_a_second, middle, starved=starved)
            write_lines(paths.metrics(stream), seconds_of)
            write_log(paths.log(stream), _rank_log(chance, rank, begin, seconds, log_every, middle))
        if index == 0:
            write_lines(paths.metrics(Stream(DNN, host, "agent")), _values(chance, begin, seconds))
    for host in data:
        write_lines(
            paths.metrics(Stream(DATA, host, "host")), _host(chance, begin, seconds, cores=16, busy=0.83, middle=middle)
        )
        write_lines(paths.metrics(Stream(DATA, host, "feed")), _workers(chance, begin, seconds))
        write_log(paths.log(Stream(DATA, host, "feed")), _feed_log(host, begin, middle, last=host == data[-1]))
    return paths


def _events(
    paths: RunPaths,
    data: Sequence[str],
    dnn: Sequence[str],
    created: float,
    begin: float,
    end: float,
    middle: float,
    status: Status | None,
) -> None:
    hosts = [(DATA, host) for host in data] + [(DNN, host) for host in dnn]
    engine: list[Event] = [
        StatusChanged(t=created, status=SecondaryStatus.STARTING, message="starting"),
        InstancesStarted(t=created + 1.0, hosts={DATA: tuple(data), DNN: tuple(dnn)} if data else {DNN: tuple(dnn)}),
        StatusChanged(t=created + 1.0, status=SecondaryStatus.TRAINING, message="training"),
    ]
    engine += [
        HostStarted(t=created + 2.0 + 0.6 * index, group=group, host=host, pid=400 + index)
        for index, (group, host) in enumerate(hosts)
    ]
    leader: list[Event] = [
        HostRegistered(t=created + 4.5 + 0.7 * index, group=group, host=host)
        for index, (group, host) in enumerate(hosts)
    ]
    leader.append(JobStarted(t=begin - 1.0))
    streams = [(DATA, host, "feed") for host in data]
    streams += [(DNN, host, str(2 * index + local)) for index, host in enumerate(dnn) for local in range(2)]
    for index, (group, host, stream) in enumerate(streams):
        leader.append(ProgramStarted(t=begin - 0.9, group=group, host=host, stream=stream, pid=500 + index))
        if stream == "feed":
            leader.append(FeedReady(t=begin + 0.5, group=group, host=host, executors=16))
    if middle < end:
        leader.append(
            DataWorkerLost(
                t=middle, group=DATA, host=data[-1], reason="executor 7 was killed (SIGKILL)", recovered=True
            )
        )
    if status is not None:
        failed = status is Status.FAILED
        cause = None
        if failed:
            cause = Cause(
                CauseKind.PROGRAM_EXITED, "CUDA out of memory", DNN, dnn[0], "0", exit_code=1,
                last_lines=("torch.OutOfMemoryError: CUDA out of memory.",),
            )  # fmt: skip
        for group, host, stream in streams:
            if stream != "feed":
                code = 1 if failed and stream == "0" else 0
                leader.append(ProgramExited(t=end, group=group, host=host, stream=stream, exit_code=code))
        leader.append(JobStopping(t=end + 0.2, reason="the completion groups are done", status=status))
        for group, host, stream in streams:
            if stream == "feed":
                t = end + 2.0
                leader.append(ProgramExited(t=t, group=group, host=host, stream=stream, exit_code=0, stopped=True))
        if data:
            leader.append(HostReleased(t=end + 2.4, group=DATA, host=data[0]))
        leader.append(JobFinished(t=end + 3.0, status=status, cause=cause))
        engine.append(RunFinished(t=end + 4.0, status=status, cause=cause, failure_reason=str(cause or "")))
    write_lines(paths.events("engine"), engine)
    write_lines(paths.events(dnn[0]), sorted(leader, key=lambda event: event.t))


def _loader(
    chance: random.Random, begin: float, seconds: int, steps_a_second: float, middle: float, *, starved: bool
) -> list[Metric]:
    records: list[Metric] = []
    for second in range(1, seconds + 1):
        t = begin + second
        trouble = middle <= t < middle + 18
        wait = (0.46 if starved else 0.025) * chance.uniform(0.8, 1.2) + (0.35 if trouble else 0.0)
        wait += 0.25 if second < 5 else 0.0
        wait = min(wait, 0.9)
        copy = 0.04 * chance.uniform(0.9, 1.1)
        steps = max(1, round(steps_a_second * (1 - 0.6 * (wait - 0.02)) + chance.uniform(-0.4, 0.4)))
        step = 1.0 + chance.uniform(-0.02, 0.02)
        records.append(
            LoaderSecond(
                t=t, loader="train", epoch=second // 200, steps=steps, samples=steps * 64, wait=wait * step, step=step,
                step_min=step / steps * 0.92, step_max=step / steps * (1.9 if trouble else 1.12),
                bytes=steps * 64 * 150_528, h2d=copy, compute=step * (1 - wait) - copy,
                queue=max(0.0, (0.4 if starved or trouble else 6.5) + chance.uniform(-0.4, 0.6)),
            )
        )  # fmt: skip
    return records


def _host(
    chance: random.Random,
    begin: float,
    seconds: int,
    *,
    cores: int,
    busy: float,
    gpus: int = 0,
    starved: bool = False,
    middle: float = math.inf,
) -> list[Metric]:
    records: list[Metric] = []
    cpu, received, sent = 0.0, 0, 0
    for second in range(seconds + 3):
        t = begin + second
        trouble = middle <= t < middle + 18
        share = busy * chance.uniform(0.93, 1.05) * (0.5 if trouble else 1.0) * (0.2 if second < 3 else 1.0)
        cpu += min(share, 1.0) * cores
        rate = 154e6 * chance.uniform(0.9, 1.05) * (0.6 if trouble else 1)
        received += int(rate if gpus else rate / 60)
        sent += int(rate / 60 if gpus else rate)
        use = (52 if starved else 94) + chance.uniform(-4, 3)
        records.append(
            HostSecond(
                t=t, cpu=cpu, cores=cores, rss=int((9 + 3 * min(1, second / 60)) * 2**30), processes=9,
                memory=192 << 30, received=received, sent=sent, read=second * 90_000_000, written=second * 300_000,
                gpus=tuple(
                    GpuUse(index, "NVIDIA A10G", max(0.0, use - index), 17 << 30, 24 << 30, 2.1 * use)
                    for index in range(gpus)
                ),
            )
        )  # fmt: skip
    return records


def _workers(chance: random.Random, begin: float, seconds: int) -> list[Metric]:
    records: list[Metric] = []
    for second in range(1, seconds + 1):
        produce = 16 * 0.82 * chance.uniform(0.95, 1.05)
        blocked = 16 * 0.05 * chance.uniform(0.8, 1.2)
        samples = 1020 + chance.randint(-30, 30)
        records.append(
            WorkerSecond(
                t=begin + second, seconds=1.0, executors=16, produce=produce, blocked=blocked,
                idle=16 - produce - blocked, cpu=produce, slices=16, samples=samples, bytes=samples * 150_528,
                sent=samples * 150_528, sending=0.2,
            )
        )  # fmt: skip
    return records


def _values(chance: random.Random, begin: float, seconds: int) -> list[Metric]:
    records: list[Metric] = []
    for second in range(2, seconds, 2):
        loss = 6.9 * math.exp(-second / (seconds / 4)) + 0.7 + chance.uniform(-0.05, 0.05)
        value = {"count": 1, "last": loss, "low": loss, "high": loss, "total": loss}
        records.append(ValueSecond(t=begin + second, name="train:loss", stream="0", step=8 * second, **value))
    return records


def _rank_log(
    chance: random.Random, rank: str, begin: float, seconds: int, every: float, middle: float
) -> Iterable[tuple[float, str, str]]:
    yield begin, "o", f"rank {rank} of 4, cuda:{int(rank) % 2}, NVIDIA A10G"
    count = int(seconds / every)
    warned = False
    for index in range(count):
        t = begin + index * every + 0.21 * int(rank) / 4
        if t > middle + 0.4 and not warned:
            warned = True
            yield middle + 0.4, "e", "\x1b[33mWARNING\x1b[0m a data worker of algo-2 was replaced, 3 slices asked again"
        loss = 6.9 * math.exp(-index / (count / 4)) + 0.7
        yield t, "o", f"epoch {index * every // 200:.0f} step {index * every * 8:.0f} loss {loss:.4f} lr 0.1"
    yield begin + seconds, "o", f"rank {rank}: done, accuracy {0.76 + chance.uniform(-0.01, 0.01):.4f}"


def _feed_log(host: str, begin: float, middle: float, *, last: bool) -> Iterable[tuple[float, str, str]]:
    yield begin - 0.4, "o", f"{host}: 16 executors, pipeline imagenet:train, listening on port 7070"
    if last and middle < math.inf:
        yield middle, "e", "executor 7 (pid 5117) was killed by SIGKILL; starting another"
        yield middle + 1.2, "o", "executor 7 is ready again (pid 6204)"
