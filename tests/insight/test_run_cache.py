"""The list of runs, looked at again and again."""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path

import pytest
from recorded_runs import FEED, feed, host, loader, rank, record

from headrace.grid.controller.attempt_runner import cost_so_far
from headrace.insight import report, run_cache
from headrace.insight.advise.advisor import advised
from headrace.insight.run_cache import RunCache
from headrace.insight.run_cost import cost_report
from headrace.runs import EventWriter, MetricWriter, Run, RunPaths, Status, Stream, adopt, create_run
from headrace.runs.events import HostReleased, InstancesStarted, RunFinished, SecondaryStatus, StatusChanged

START = 1_790_000_000.0
_opened: list[str] = []
_watched = threading.local()  # what a thread opens below this path


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    below = getattr(_watched, "path", None)
    if below and event in ("open", "os.scandir") and str(arguments[0]).startswith(below):
        _opened.append(str(arguments[0]))


sys.addaudithook(_audit)  # it cannot be taken back, and looks only while `opened` does


def opened(below: Path, look: object) -> list[str]:
    """Returns the files below a path that are opened while something is done."""
    assert callable(look)
    _opened.clear()
    _watched.path = str(below)
    try:
        look()
    finally:
        _watched.path = None
    return [path for path in _opened if Path(path).is_file()]


def ended_run(runs: Path, name: str = "job") -> RunPaths:
    """Makes a run that has ended, with metrics that cannot be read."""
    paths = create_run(name, runs=runs, created=START + 1.0)
    with EventWriter(paths.events("engine")) as events:
        events.write(InstancesStarted(t=START + 2.0, hosts={"g": ("algo-1",)}))
        events.write(HostReleased(t=START + 8.0, group="g", host="algo-1"))
        events.write(RunFinished(t=START + 9.0, status=Status.COMPLETED))
    metrics = paths.root / "metrics" / "g" / "algo-1" / "0.jsonl"
    metrics.parent.mkdir(parents=True)
    metrics.write_text("no metrics\n")
    return paths


MANY = 300


def test_the_record_of_a_run_that_has_ended_is_read_once_however_many_there_are(tmp_path: Path) -> None:
    first = ended_run(tmp_path)
    for i in range(MANY):
        copy = RunPaths(shutil.copytree(first.root, tmp_path / f"job-19700101-000001-{i:04x}"))
        copy.header.write_text(first.header.read_text().replace(first.id, copy.id))
    cache = RunCache(tmp_path)
    assert len(opened(tmp_path, lambda: cache.lines(START + 10.0))) >= 2 * MANY
    assert opened(tmp_path, lambda: cache.lines(START + 11.0)) == []
    assert len(cache.lines(START + 11.0)) == MANY + 1
    runs = [RunPaths(tmp_path / line.run_id) for line in cache.lines(START + 11.0)]
    held = [cache._index(paths) for paths in runs]
    assert all(cache._index(paths) is index for paths, index in zip(runs, held, strict=True)), "one after the other"


def test_the_list_has_what_comes_goes_grows_and_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cache, "ENDED_SECONDS", 0.0)
    cache = RunCache(tmp_path)
    assert cache.lines(START + 10.0) == []
    ended, going = ended_run(tmp_path), create_run("going", runs=tmp_path, created=START + 5.0)
    adopt(going)  # this process answers for it
    assert [(line.job_name, line.exit_code) for line in cache.lines(START + 10.0)] == [("job", 0), ("going", None)]
    with EventWriter(going.events("engine")) as events:
        events.write(StatusChanged(t=START + 6.0, status=SecondaryStatus.TRAINING, message=""))
        assert cache.lines(START + 10.0)[1].secondary_status == "Training"
        events.write(RunFinished(t=START + 9.0, status=Status.COMPLETED))
    with EventWriter(ended.events("late")) as events:
        events.write(InstancesStarted(t=START + 9.5, hosts={"more": ("algo-2", "algo-3")}))
    assert [(line.exit_code, line.hosts) for line in cache.lines(START + 10.0)] == [(0, 3), (0, 0)]
    header = ended.header.read_bytes()
    ended.header.write_text("{")
    assert [line.job_name for line in cache.lines(START + 10.0)] == ["going"]
    ended.header.write_bytes(header)
    assert [line.job_name for line in cache.lines(START + 10.0)] == ["job", "going"]
    shutil.rmtree(going.root)
    assert [line.job_name for line in cache.lines(START + 10.0)] == ["job"]


def test_what_a_run_has_cost_so_far_is_known_without_reading_its_metrics(tmp_path: Path) -> None:
    run = Run(ended_run(tmp_path))
    (run.paths.root / "plan.json").write_text(
        '{"groups": [{"name": "g", "instance_type": "ml.c5.4xlarge", "hosts": ["algo-1"]}]}'
    )
    found: list[object] = []
    assert not [p for p in opened(tmp_path, lambda: found.append(cost_so_far(run, "us-east-1"))) if "/metrics/" in p]
    report = cost_report(run, region="us-east-1")
    assert report.total.value is not None
    assert found == [(report.total.value, report.hosts[0].seconds.value)]


def test_the_report_of_a_run_whose_metrics_are_held_reads_only_what_is_new_of_them(tmp_path: Path) -> None:
    run = record(tmp_path, "job", {rank(0): loader(0.4, seconds=20)}, ended=None)
    quiet, growing = (RunCache(tmp_path).open("job", metrics=True) for _ in range(2))
    assert quiet.metrics(None, None, 10).records == growing.metrics(None, None, 10).records == 20
    assert opened(run.paths.root / "metrics", quiet.report) == []
    with MetricWriter(run.paths.metrics(rank(0))) as written:
        for one in loader(0.4, seconds=60)[20:]:
            written.write(one)
    found, anew = growing.report(), report(run)
    assert (found.training, found.groups) == (anew.training, anew.groups)
    assert found.training is not None
    assert growing.version().metrics == 60


def test_a_page_whose_report_is_asked_for_first_reads_the_metrics_once_for_its_charts_too(tmp_path: Path) -> None:
    run = record(tmp_path, "job", {rank(0): loader(0.4, seconds=20)}, ended=None)
    page = RunCache(tmp_path).open("job", metrics=True)
    assert page.report().training == report(run).training
    assert opened(run.paths.root / "metrics", lambda: page.metrics(None, None, 10)) == []
    listed = RunCache(tmp_path).open("job")  # a row of the list: nothing of its metrics stays in memory
    listed.report()
    assert opened(run.paths.root / "metrics", lambda: listed.metrics(None, None, 10)) != []


def test_advice_reads_the_metrics_once_for_its_model_and_the_verdict(tmp_path: Path) -> None:
    hosts = {Stream(one.group, one.host, "host"): host(0.5) for one in (rank(0), FEED)}
    run = record(tmp_path, "job", {rank(0): loader(0.5), FEED: feed(0.9, 0.0), **hosts})
    (run.paths.root / "job.json").write_text("{}")
    files = opened(run.paths.root / "metrics", lambda: advised(run))
    assert sorted(files) == sorted({str(run.paths.metrics(stream)) for stream in (rank(0), FEED, *hosts)})
