"""The metrics of hosts and of programs at `headrace serve`: CloudWatch by host, and what programs put themselves."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from headrace.endpoint.auth.gatekeeper import Caller, Holder
from headrace.endpoint.services.cloudwatch_metrics import monitoring
from headrace.runs import GpuUse, HostSecond, MetricWriter, Run, Stream, create_run
from patience import allowed
from serve_process import GROUP, ServeProcess

BEGIN = 1_795_201_260.0
CALLER = Caller(Holder.USER, "key", "monitoring", "us-east-1", "signature", "")


class OneRun:
    """The jobs of an endpoint that has one."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def run_of(self, job_name: str) -> Run | None:
        return self._run if job_name == "job" else None


@pytest.mark.promise("serve", "figures of hosts by CloudWatch; BatchPutMetrics and BatchGetMetrics")
def test_a_hosts_figures_are_sums_over_its_cpus_and_gpus_as_the_service_has_them(tmp_path: Path) -> None:
    paths = create_run("job", runs=tmp_path, created=BEGIN)
    for place, cores in ((1, 2), (2, 4)):
        with MetricWriter(paths.metrics(Stream("dnn", f"algo-{place}", "host"))) as metrics:
            for second in range(121):
                gpus = tuple(
                    GpuUse(index=index, name="A10G", use=use, memory=1 << 30, memory_total=4 << 30)
                    for index, use in enumerate((40.0, 80.0 if second < 60 else 100.0))
                )
                metrics.write(
                    HostSecond(
                        t=BEGIN + second, cpu=second * place * 1.5, cores=cores, rss=1, processes=1, memory=1000,
                        used=250 * place, gpus=gpus if place == 2 else (), disk=12.5,
                    )
                )  # fmt: skip
    ask = monitoring(OneRun(Run(paths, lambda _: True))).operations["GetMetricStatistics"]

    def points(host: str, name: str, **more: object) -> list[Any]:
        members: dict[str, object] = {
            "Namespace": GROUP,
            "MetricName": name,
            "Dimensions": [{"Name": "Host", "Value": host}],
            "StartTime": BEGIN,
            "EndTime": BEGIN + 120,
            "Period": 60,
            "Statistics": ["Average", "Maximum", "SampleCount"],
            **more,
        }
        found = ask(members, CALLER)["Datapoints"]
        assert isinstance(found, list)
        assert {each["Unit"] for each in found} <= {"Percent"}
        return [round(each["Average"], 6) for each in found]

    assert points("job/algo-1", "CPUUtilization") == [150.0, 150.0], "one and a half of its two CPUs"
    assert points("job/algo-2", "CPUUtilization") == [300.0, 300.0]
    assert points("job/algo-1", "MemoryUtilization") == [25.0, 25.0]
    assert points("job/algo-2", "GPUUtilization") == [120.0, 140.0], "the sum of both"
    assert points("job/algo-2", "GPUMemoryUtilization") == [50.0, 50.0]
    assert points("job/algo-1", "GPUUtilization") == [], "it has none"
    assert points("job/algo-1", "DiskUtilization") == [12.5, 12.5]
    assert points("job/algo-3", "CPUUtilization") == points("other/algo-1", "CPUUtilization") == []
    assert points("job/algo-1", "CPUUtilization", Unit="Bytes") == []


PUTS = """
import botocore.session, os, time
client = botocore.session.get_session().create_client("sagemaker-metrics")
name = os.environ["TRAINING_JOB_NAME"].lower() + "-aws-training-job"
for step in range(3):
    data = [{"MetricName": "loss", "Timestamp": 1795201260 + step, "Step": step, "Value": 1.0 / (1 + step)}]
    assert not client.batch_put_metrics(TrialComponentName=name, MetricData=data).get("Errors")
wrong = client.batch_put_metrics(TrialComponentName="no-such-aws-training-job", MetricData=data)
print("refused", wrong["Errors"], flush=True)
far = [{**data[0], "MetricName": "far", "Step": step} for step in (1 << 63, (1 << 63) - 1)]
wrong = client.batch_put_metrics(TrialComponentName=name, MetricData=far)
print("too far", [(each["Code"], each["MetricIndex"]) for each in wrong["Errors"]], flush=True)
end = time.monotonic() + 3.2
while time.monotonic() < end:
    pass
"""


def page_runs(endpoint: ServeProcess) -> list[dict[str, Any]]:
    """Returns what the page of `headrace ui` lists."""
    command = [sys.executable, "-m", "headrace", "ui", "--no-open"]
    environ = {**os.environ, "HEADRACE_HOME": str(endpoint.home)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as page:
        try:
            assert page.stdout is not None
            address = urllib.parse.urlsplit(page.stdout.readline().split()[-1])
            connection = http.client.HTTPConnection(str(address.hostname), address.port or 80, timeout=30)
            connection.request("GET", f"/api/runs?{address.query}")
            answer = json.loads(connection.getresponse().read())
            connection.close()
        finally:
            page.send_signal(signal.SIGINT)
            page.wait(allowed(30))
    runs: list[dict[str, Any]] = answer
    return runs


@pytest.mark.promise("serve", "figures of hosts by CloudWatch; BatchPutMetrics and BatchGetMetrics")
def test_a_job_has_the_figures_of_its_hosts_and_what_its_programs_put(module_endpoint: ServeProcess) -> None:
    endpoint = module_endpoint
    client = endpoint.client()
    arn = client.create_training_job(**endpoint.one_host("Puts", PUTS))["TrainingJobArn"]
    found = endpoint.ended(client, "Puts")
    assert found["TrainingJobStatus"] == "Completed", found.get("FailureReason")
    log = next(endpoint.runs()[0].parent.glob("logs/*/*/0.log")).read_text()
    assert "refused [{'Code': 'VALIDATION_ERROR', 'MetricIndex': 0}]" in log
    assert "too far [('VALIDATION_ERROR', 0)]" in log

    metrics = endpoint.client("sagemaker-metrics")
    query = {"MetricName": "loss", "ResourceArn": arn, "MetricStat": "Last", "Period": "IterationNumber"}
    minutes = {**query, "MetricStat": "Avg", "Period": "OneMinute", "XAxisType": "Timestamp"}
    by_step = {**query, "XAxisType": "IterationNumber"}
    answers = metrics.batch_get_metrics(MetricQueries=[by_step, minutes, {**by_step, "MetricName": "far"}])
    steps, times, far = answers["MetricQueryResults"]
    assert (far["XAxisValues"], far["MetricValues"]) == ([(1 << 63) - 1], [1 / 3])
    assert (steps["Status"], steps["XAxisValues"], steps["MetricValues"]) == ("Complete", [0, 1, 2], [1.0, 0.5, 1 / 3])
    assert times["XAxisValues"] == [1795201260]
    assert times["MetricValues"] == [pytest.approx((1 + 0.5 + 1 / 3) / 3)]

    run = endpoint.runs()[0].parent.name
    assert [(each["run_id"], each["status"]) for each in page_runs(endpoint)] == [(run, "Completed")]

    cloudwatch = endpoint.client("cloudwatch")

    def most(name: str) -> float:
        answer = cloudwatch.get_metric_statistics(
            Namespace=GROUP, MetricName=name, Dimensions=[{"Name": "Host", "Value": "Puts/algo-1"}], Period=60,
            StartTime=found["CreationTime"], EndTime=found["LastModifiedTime"], Statistics=["Maximum"],
        )  # fmt: skip
        assert {each["Unit"] for each in answer["Datapoints"]} == {"Percent"}
        return max(each["Maximum"] for each in answer["Datapoints"])

    assert 5 < most("CPUUtilization") < 100 * 64
    assert 0 < most("MemoryUtilization") <= 100
    assert 0 < most("DiskUtilization") <= 100
    endpoint.close_clients()
