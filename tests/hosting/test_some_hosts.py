"""A machine that has one host of two does nothing for the other one: the real processes, on data of this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.child_python import read_report
from headrace.engines.planning.plan_channels import prepare_channels
from headrace.hosting.supervision.cleanup import remove_channels
from headrace.hosting.supervision.one_host import keep_own_orders
from headrace.instance.channels.stage_orders import SERVE, ChannelOrder, order_path
from headrace.instance.launch_plan import GroupPlan, HostPlan, LaunchPlan
from headrace.runs import RunPaths

BOTH = ("algo-1", "algo-2")


@pytest.mark.promise("own-engine", "a machine with some hosts of a job fetches, serves and stores for these alone")
def test_its_channels_are_staged_and_served_and_no_other(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in "abcd":
        (data / name).write_text(name * 3)
    orders = (
        ChannelOrder("dealt", str(data), BOTH, distribution="ShardedByS3Key"),
        ChannelOrder("piped", str(data), BOTH, distribution="ShardedByS3Key", input_mode="Pipe"),
        ChannelOrder("other", str(tmp_path / "missing"), ("algo-1",), distribution="ShardedByS3Key"),
    )
    plan = LaunchPlan(
        job_name="job",
        run_id="job-1",
        entry_point="t.py",
        groups=(GroupPlan("all", "ml.c5.xlarge", BOTH),),
        hosts=tuple(HostPlan(host, "all", host, "/opt/ml", "") for host in BOTH),
        leader="algo-1",
    )
    paths = RunPaths(tmp_path / "run")
    channels = paths.host("algo-2") / "input/data"
    channels.mkdir(parents=True)
    prepare_channels(plan, orders, paths)
    keep_own_orders(plan, paths, "algo-2")

    run_helper = [sys.executable, "-m", "headrace.hosting.helpers.stage", str(paths.root)]
    subprocess.run(run_helper, check=True, timeout=60)
    assert sorted(path.name for path in (channels / "dealt").iterdir()) == ["b", "d"]
    assert [path.name for path in (paths.root / "channels/data/dealt/data").iterdir()] == ["1"], "its share alone"

    serve = [sys.executable, "-m", "headrace.hosting.helpers.serve_channels", str(paths.root)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            report = read_report(server.stdout.readline())
            assert report is not None
            assert report.ready
            assert (channels / "piped_0").read_bytes() == b"bbbddd"
        finally:
            server.terminate()
        assert server.wait(20) == 0
    assert sorted(path.name for path in channels.iterdir()) == ["dealt"]

    assert order_path(paths.root, SERVE).exists()
    remove_channels(paths)
    assert not (paths.root / "channels").exists()
    assert not paths.host("algo-1").exists()
