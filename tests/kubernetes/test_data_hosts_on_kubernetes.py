"""Data hosts that come and go, on a real cluster: the leader's pod asks for them, one is evicted, one is given back."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_table_kubernetes import HOST, RUN, KubernetesNodes, KubernetesPlatform
from engine_table_play import Play
from engine_table_shapes import Shape
from team import listed
from test_local_data_hosts import DATA, TRAIN

from headrace.runs.events import DataWorkerLost, FeedReady, HostJoined, HostReleased

pytestmark = pytest.mark.timeout(900)

RANGE = {"min": 1, "max": 2, "idle_after": 1.0}
FEED = {"enabled": True, "workers_per_host": 1, "workers": RANGE}
JOB = Shape(
    {"train.py": TRAIN, "data.py": DATA},
    {"dnn": 1, "data": 2},
    {"data_service": {"feed": FEED, "instance_groups": ["data"]}},
)


@pytest.fixture
def platform() -> Iterator[KubernetesPlatform]:
    with KubernetesNodes().open(Path(tempfile.mkdtemp(prefix="hk-"))) as opened:
        assert isinstance(opened, KubernetesPlatform)
        yield opened


@pytest.mark.parametrize("how", ["evict", "node"])
def test_pods_of_data_hosts_come_and_go_and_one_that_is_lost_is_replaced(
    platform: KubernetesPlatform, how: str
) -> None:
    play = Play(platform, f"range-{how}")
    play.submit(JOB.document(play.name, platform.folder))

    def hosts_of(kind: type) -> list[str]:
        run = play.run
        assert not run.finished, str(play)
        return [event.host for event in run.events() if isinstance(event, kind)]

    def pods() -> list[str]:
        found = listed("pods", "-l", RUN, "--field-selector=status.phase=Running")
        return sorted(pod["metadata"]["labels"][HOST] for pod in found if "deletionTimestamp" not in pod["metadata"])

    play.until(lambda: hosts_of(FeedReady) == ["algo-2", "algo-3"], "a second data host")
    assert hosts_of(HostJoined) == ["algo-3"]
    assert pods() == ["algo-1", "algo-2", "algo-3"]
    if how == "evict":
        platform.remove(play.run, "algo-3", how)
    else:
        platform.kill_node(play.run, "algo-3")
    play.until(lambda: hosts_of(FeedReady)[2:] == ["algo-3"], "another pod in its place", 400)
    assert hosts_of(DataWorkerLost) == ["algo-3"]
    released = len(hosts_of(HostReleased))
    platform.touch(play.run, "algo-1", "slow")
    play.until(lambda: len(hosts_of(HostReleased)) == released + 1, "one is given back")
    play.until(lambda: pods() == ["algo-1", "algo-2"], "its pod is gone")
    platform.touch(play.run, "algo-1", "enough")
    assert play.wait(90) == 0, str(play)
    [line] = [line for line in play.text().splitlines() if line.startswith("steps")]
    assert "same True" in line
    play.assert_nothing_left()
    platform.mend()
