"""A job whose data hosts join and leave while it runs, with the real DataLoader: every batch once, the same bits."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from run_places import WITHOUT_TORCH, flag
from stage import agent_pid, both_isolations_at_length, groups, kill, text

from headrace.errors import JobInvalid
from headrace.job import Job
from headrace.processes.process_table import look
from headrace.runs import Status
from headrace.runs.events import AttemptStarted, DataWorkerLost, FeedReady, HostJoined, HostReleased
from patience import until

DATA = """
import random, time
import numpy as np
from headrace import feed

class Noise:
    def __init__(self, pause):
        self.pause = pause
    def __len__(self):
        return 1 << 20
    def __getitem__(self, index):
        time.sleep(self.pause)
        return np.array([index, random.random(), np.random.rand()])

@feed.pipeline
def noise(pause):
    return Noise(pause)
"""

TRAIN = """
import hashlib, itertools, os, time
from data import noise
from headrace import feed

options = dict(batch_size=8, shuffle=True, seed=11, collate_fn=feed.stack_arrays)
digest, steps = hashlib.sha256(), 0
with feed.DataLoader(noise(0.01), **options) as loader:
    for batch in loader:
        digest.update(batch.tobytes())
        steps += 1
        time.sleep(0.3 if os.path.exists("slow") else 0.02)
        if os.path.exists("enough"):
            break
    stats = loader.stats()
expected = hashlib.sha256()
with feed.DataLoader(noise(0.0), workers="local", **options) as loader:
    for batch in itertools.islice(loader, steps):
        expected.update(batch.tobytes())
print("steps", steps, "same", digest.digest() == expected.digest(), "lost", stats["workers_lost"], flush=True)
"""


def job_fields(least: int, most: int, count: int) -> dict[str, object]:
    feed = {"enabled": True, "workers_per_host": 1, "workers": {"min": least, "max": most, "idle_after": 1.0}}
    return {
        "instance_groups": groups(dnn=1, data=count),
        "data_service": {"feed": feed, "instance_groups": ["data"]},
    }


def start(stage, least=1, most=3, count=3, **fields):  # type: ignore[no-untyped-def]
    code = Path(stage.folder) / "code"
    code.mkdir(exist_ok=True)
    (code / "data.py").write_text(textwrap.dedent(DATA))
    return stage.start(TRAIN, environment=WITHOUT_TORCH, **job_fields(least, most, count), **fields)


def hosts_of(handle, kind):  # type: ignore[no-untyped-def]
    return [event.host for event in handle.run.events() if isinstance(event, kind)]


@pytest.mark.timeout(300)
@pytest.mark.promise("job-file", "data hosts come and go with the need, and one that is lost is replaced")
@both_isolations_at_length
def test_data_hosts_join_when_the_trainer_waits_and_leave_when_it_does_not_and_no_batch_is_lost(stage) -> None:  # type: ignore[no-untyped-def]
    handle = start(stage)
    until(lambda: hosts_of(handle, HostReleased) == ["algo-3", "algo-4"], 60)
    until(lambda: hosts_of(handle, FeedReady)[:1] == ["algo-2"], 60)
    until(lambda: set(hosts_of(handle, HostJoined)) == {"algo-3", "algo-4"}, 60)
    until(lambda: set(hosts_of(handle, FeedReady)) == {"algo-2", "algo-3", "algo-4"}, 60)
    kill(agent_pid(handle, "algo-3"))  # one that has joined is lost
    until(lambda: hosts_of(handle, HostJoined).count("algo-3") == 2, 60)  # its place is taken by another of its name
    until(lambda: hosts_of(handle, FeedReady).count("algo-3") == 2, 60)
    flag(handle, "slow")
    until(lambda: hosts_of(handle, HostReleased) == ["algo-3", "algo-4", "algo-3", "algo-4"], 60)
    until(lambda: look(agent_pid(handle, "algo-4")) is None, 20)  # there is no instance of it any more
    flag(handle, "enough")
    assert handle.wait(60) is Status.COMPLETED
    stage.assert_nothing_left(handle)
    [line] = [line for line in text(handle).splitlines() if line.startswith("steps")]
    assert "same True" in line
    assert [event.host for event in handle.run.events() if isinstance(event, DataWorkerLost)] == ["algo-3"]
    report = handle.report()
    seconds = {host.host: host.seconds(0.0) for host in handle.run.state().hosts}
    assert seconds["algo-4"] < seconds["algo-2"] - 2.0  # it counts by the time that it was there
    assert report is not None


@pytest.mark.timeout(300)
@pytest.mark.promise("runs", "`retry` starts again what infrastructure failed, never what was stopped")
@both_isolations_at_length
def test_in_another_attempt_data_hosts_come_and_go_as_in_the_first(stage) -> None:  # type: ignore[no-untyped-def]
    handle = start(stage, count=2, most=2, retry={"attempts": 1})
    until(lambda: set(hosts_of(handle, FeedReady)) == {"algo-2", "algo-3"}, 60)
    kill(agent_pid(handle, "algo-1"))

    def since(kind):  # type: ignore[no-untyped-def]
        events = handle.run.events()
        first = next((place for place, event in enumerate(events) if isinstance(event, AttemptStarted)), len(events))
        return [event.host for event in events[first:] if isinstance(event, kind)]

    until(lambda: set(since(FeedReady)) == {"algo-2", "algo-3"}, 90)
    assert since(HostJoined) == ["algo-3"]
    flag(handle, "slow")
    until(lambda: since(HostReleased)[-1:] == ["algo-3"] and since(HostReleased).count("algo-3") == 2, 60)
    flag(handle, "enough")
    assert handle.wait(60) is Status.COMPLETED, handle.cause
    stage.assert_nothing_left(handle)
    assert handle.run.state().attempt == 2
    [line] = [line for line in text(handle).splitlines() if line.startswith("steps")]
    assert "same True lost 0" in line


def test_what_a_range_of_data_hosts_cannot_be_is_refused(tmp_path: Path) -> None:
    def refused(**changes: object) -> str:
        data = {"job_name": "job", "entry_point": "train.py", **job_fields(1, 3, 3)} | changes
        with pytest.raises(JobInvalid) as error:
            Job(**data)
        return str(error.value)

    assert "min: must be at most max, which is 1" in refused(**job_fields(2, 1, 3))
    assert "max: must be at most the 2 instances of the groups of data_service" in refused(**job_fields(1, 3, 2))
    assert "'data' trains" in refused(completion={"instance_groups": ["data"]})
    sharded = {"training": {"uri": "file:///data", "distribution": "ShardedByS3Key"}}
    assert "is not possible with the channel 'training'" in refused(inputs=sharded)
