"""What is told of a host that cannot be made."""

from __future__ import annotations

import subprocess

import pytest

from headrace.engines.local.local_instances import LocalInstances, Starter
from headrace.errors import HeadraceError
from headrace.hosting.supervision.instances import Start
from headrace.instance.launch_plan import GroupPlan, HostPlan, LaunchPlan
from headrace.runs import EventWriter, RunPaths

HOST = "algo-1"


class NoRoom(Starter):
    """A host's first process says why it cannot go on, and ends."""

    def prepare(self, host: str, argv: object) -> Start:
        return Start(host, ("sh", "-c", "echo no room >&2; exit 1"), {})

    def agent(self, start: Start, process: subprocess.Popen[bytes]) -> int:
        process.wait(20)
        raise HeadraceError(f"{start.host} could not be isolated: its first process ended", hint="make room")


def test_a_host_that_cannot_be_made_is_named_with_its_last_words(tmp_path):
    plan = LaunchPlan(
        job_name="j",
        run_id="j-1",
        entry_point="t.py",
        groups=(GroupPlan("dnn", "ml.c5.xlarge", (HOST,)),),
        hosts=(HostPlan(HOST, "dnn", "127.0.0.1", str(tmp_path), str(tmp_path)),),
        leader=HOST,
    )
    paths = RunPaths(tmp_path)
    (tmp_path / "engine").mkdir()
    with EventWriter(paths.events("engine")) as events:
        agents = LocalInstances(plan, paths, events)
        agents._starter = NoRoom()
        try:
            with pytest.raises(HeadraceError, match=r"algo-1 could not be isolated: .* ended: no room") as caught:
                agents._start_agents({})
            assert caught.value.hint == "make room"
        finally:
            agents.remove()
