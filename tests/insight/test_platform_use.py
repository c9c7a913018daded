"""What a platform measured of hosts: which hosts are asked for, and the figures of their minutes."""

from __future__ import annotations

from pathlib import Path

from recorded_runs import columns_of

from headrace.engines.sagemaker.boto_service import HostPoint, ServiceRefused
from headrace.engines.sagemaker.refresh_training_job import bring_host_metrics
from headrace.insight.figures.host_usage import platform_uses
from headrace.runs import EventWriter, MetricWriter, Run, Stream, create_run, of_kind
from headrace.runs.events import AttemptBilled, InstancesStarted
from headrace.runs.metric_records import HostSecond, PlatformMinute

BILL = AttemptBilled(
    t=700.0,
    name="mill",
    number=1,
    region="eu-west-1",
    groups={"data": ("ml.c5.xlarge", 2), "dnn": ("ml.g5.12xlarge", 1)},
    training_seconds=600,
    billable_seconds=600,
    started=60.0,
    ended=660.0,
)
HOSTS = {"data": ("algo-1", "algo-3"), "dnn": ("algo-2",)}


class Measured:
    """CloudWatch, which has two minutes of every host."""

    def __init__(self, refuses: bool = False) -> None:
        self.asked: list[tuple[str, str, float, float]] = []
        self.refuses = refuses

    def host_points(self, name: str, host: str, metric: str, begin: float, end: float) -> list[HostPoint]:
        if self.refuses:
            raise ServiceRefused("AccessDenied", "not allowed")
        self.asked.append((host, metric, begin, end))
        gpu = metric.startswith("GPU") and host != "algo-2"
        return [] if gpu else [HostPoint(60.0, 200.0), HostPoint(120.0, 100.0)]


def recorded(tmp_path: Path, *, instances: bool = True) -> Run:
    paths = create_run("mill", "sagemaker", tmp_path)
    with EventWriter(paths.events("platform")) as events:
        if instances:
            events.write(InstancesStarted(t=61.0, hosts=HOSTS))
        events.write(BILL)
    for host, last in (("algo-1", 655.0), ("algo-3", 300.0)):
        with MetricWriter(paths.metrics(Stream("data", host, "host"))) as metrics:
            metrics.write(HostSecond(t=last, cpu=1.0, cores=4, rss=1, processes=1))
    return Run(paths)


def test_only_what_the_own_records_do_not_tell_is_brought_from_where_they_end(tmp_path: Path) -> None:
    run, service = recorded(tmp_path), Measured()
    assert bring_host_metrics(run, service) == 4  # type: ignore[arg-type]
    assert {(host, begin, end) for host, _, begin, end in service.asked} == {
        ("algo-2", 60.0, 660.0),  # it has no record
        ("algo-3", 300.0, 660.0),  # its agent was killed
    }
    found = of_kind(run.metrics(), PlatformMinute)
    assert found[Stream("dnn", "algo-2", "platform")][0] == PlatformMinute(
        t=60.0, seconds=60.0, source="CloudWatch", cpu=200.0, memory=200.0, gpu=200.0, gpu_memory=200.0, disk=200.0
    )
    types = {name: kind for name, (kind, _) in BILL.groups.items()}
    data, dnn = platform_uses(columns_of(found), types)
    assert (data.host, data.cpu.value, data.gpu_use.value) == ("algo-3", 150 / 4, None)
    assert data.gpu_use.note == "CloudWatch has none of this host"
    assert (dnn.cpu.value, dnn.gpu_use.value, dnn.memory.value) == (150 / 48, 150 / 4, 200.0)
    assert dnn.cpu.window is not None
    assert (dnn.cpu.window.start, dnn.cpu.window.end) == (60.0, 180.0)


def test_a_host_whose_group_nobody_told_is_shown_without_one_and_a_refusal_ends_nothing(tmp_path: Path) -> None:
    run = recorded(tmp_path, instances=False)
    assert bring_host_metrics(run, Measured(refuses=True)) == 0  # type: ignore[arg-type]
    assert bring_host_metrics(run, Measured()) == 4  # type: ignore[arg-type]
    uses = platform_uses(columns_of(of_kind(run.metrics(), PlatformMinute)), {"data": "ml.c5.xlarge"})
    assert [(each.group, each.host) for each in uses] == [("unknown", "algo-2"), ("unknown", "algo-3")]
    assert (uses[0].cpu.value, uses[0].cpu.unit) == (150.0, "% of one")
