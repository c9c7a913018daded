"""Small runs, written in the layout of real ones and read back through `Run`."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.insight.charts import Metrics, report_charts
from headrace.insight.figures.columns import Columns, read_columns
from headrace.insight.run_report import Report
from headrace.runs import (
    Cause,
    EventWriter,
    GpuUse,
    HostSecond,
    Metric,
    MetricWriter,
    Run,
    Status,
    Stream,
    WorkerSecond,
    create_run,
)
from headrace.runs.events import Event, InstancesStarted, JobStarted, ProgramExited, ProgramStarted, RunFinished
from loader_seconds import loader_second

START = 1_795_201_200.0
FEED = Stream("data_group", "algo-1", "feed")
HOSTS = {"data_group": ["algo-1"], "dnn_group": ["algo-2"]}
TYPES = {"data_group": "ml.c5.xlarge", "dnn_group": "ml.g5.xlarge"}


def columns_of(*records: Mapping[Stream, Sequence[Metric]]) -> Columns:
    """Columns of records, of which a stream may have several kinds."""
    return Columns((stream, metric) for part in records for stream, metrics in part.items() for metric in metrics)


def read_charts(run: Run, report: Report) -> Metrics:
    """The charts of a run's report."""
    return report_charts(report, read_columns(run))


def rank(number: int, host: str = "algo-2") -> Stream:
    """The stream of a rank."""
    return Stream("dnn_group", host, str(number))


def loader(wait: float, *, step: float = 0.1, seconds: int = 30, noise: float = 0.05, seed: int = 0) -> list[Metric]:
    """Records of a loader: steps of `step` seconds, of which the part `wait` is waiting. The first one is warm-up."""
    generator = random.Random(seed)
    found: list[Metric] = []
    for second in range(seconds):
        length = step * (1 + noise * generator.gauss(0, 1)) * (20 if second == 0 else 1)
        steps = max(1, round(1 / length))
        found.append(
            loader_second(
                START + 2 + second,
                steps=steps,
                samples=64 * steps,
                wait=wait * length * steps,
                step=length * steps,
                step_min=length,
                step_max=length,
                bytes=4096 * steps,
            )
        )
    return found


def feed(produce: float, blocked: float, *, link: float = 0.0, seconds: int = 30, executors: int = 2) -> list[Metric]:
    """Records of a feed server: parts of its executors' time; what is left is idle."""
    return [
        WorkerSecond(
            t=START + 2 + second,
            seconds=1.0,
            executors=executors,
            produce=produce * executors,
            blocked=blocked * executors,
            idle=(1 - produce - blocked) * executors,
            cpu=produce * executors,
            slices=10,
            samples=640,
            bytes=1 << 20,
            sent=1 << 20,
            sending=link,
        )
        for second in range(seconds)
    ]


def host(busy: float, *, cores: int = 2, seconds: int = 34, gpu: float | None = None) -> list[Metric]:
    """Records of a host whose cores are busy for that part of the time."""
    gpus = () if gpu is None else (GpuUse(index=0, name="A10G", use=gpu, memory=1 << 30, memory_total=24 << 30),)
    kept = {"cores": cores, "rss": 1 << 28, "processes": 3, "memory": 1 << 32, "gpus": gpus}
    return [HostSecond(t=START + second, cpu=busy * cores * second, **kept) for second in range(seconds)]


def record(
    runs: Path,
    name: str,
    metrics: dict[Stream, Sequence[Metric]],
    *,
    ended: float | None = 40.0,
    status: Status = Status.COMPLETED,
    cause: Cause | None = None,
) -> Run:
    """Writes a run that started at START; `ended` is None for one that goes on (this process is its supervisor)."""
    paths = create_run(name, runs=runs, created=START - 1)
    programs = [stream for stream in metrics if stream.name != "host"] or [rank(0)]
    events: list[Event] = [InstancesStarted(t=START - 0.5, hosts=HOSTS), JobStarted(t=START)]
    events += [ProgramStarted(t=START, group=s.group, host=s.host, stream=s.name, pid=1) for s in programs]
    if ended is not None:
        code = 0 if status is Status.COMPLETED else None
        number = None if status is Status.COMPLETED else 9
        for one in programs:
            where = {"group": one.group, "host": one.host, "stream": one.name}
            events.append(ProgramExited(t=START + ended, exit_code=code, signal=number, **where))
        events.append(RunFinished(t=START + ended + 1, status=status, cause=cause))
    with EventWriter(paths.events("engine")) as out:
        for event in events:
            out.write(event)
    for stream, records in metrics.items():
        with MetricWriter(paths.metrics(stream)) as written:
            for metric in records:
                written.write(metric)
    groups = [{"name": name, "instance_type": TYPES[name], "hosts": hosts} for name, hosts in HOSTS.items()]
    (paths.root / "plan.json").write_text(json.dumps({"groups": groups, "completion_groups": ["dnn_group"]}))
    return Run(paths)
