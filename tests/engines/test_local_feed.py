"""Hosts with data workers: the feed server beside and without ranks, its death, its end."""

import time

import msgspec
import pytest
from run_places import WITHOUT_TORCH, flag, pid_here
from stage import agent_pid, assert_failed, both_isolations_at_length, groups, kill

from headrace.instance.launch_plan import FeedHosts
from headrace.runs import Status
from headrace.runs.events import DataWorkerLost, FeedReady, ProgramStarted
from patience import until

TRAINER = """
import os, time
print("running", os.environ["HEADRACE_FEED"], flush=True)
while not os.path.exists("enough"):
    time.sleep(0.02)
"""


def feeding(stage, data=1, script=TRAINER, **fields):
    return stage.start(
        script,
        instance_groups=groups(dnn=1, data=data),
        data_service={"feed": {"enabled": True, "workers_per_host": 1}, "instance_groups": ["data"]},
        environment=WITHOUT_TORCH,
        **fields,
    )


def feed_file(handle, host="algo-1"):
    path = handle.paths.host(host) / "input/data/headrace/feed.json"
    return msgspec.json.decode(path.read_bytes(), type=FeedHosts)


def states(handle):
    return [host.state for host in feed_file(handle).hosts]


def events(handle, kind):
    return [event for event in handle.run.events() if isinstance(event, kind)]


def feed_pids(handle, host):
    started = events(handle, ProgramStarted)
    return [event.pid for event in started if (event.host, event.stream) == (host, "feed")]


def kill_feed(handle, host, attempt=0):
    kill(pid_here(agent_pid(handle, host), feed_pids(handle, host)[attempt]))


def enough(handle):
    flag(handle, "enough")


def test_a_host_with_ranks_and_data_workers_reaches_its_own_by_its_socket(stage):
    handle = stage.start(
        TRAINER,
        data_service={"feed": {"enabled": True, "workers_per_host": 1}},
        environment=WITHOUT_TORCH,
        instance_groups=groups(dnn=2),
    )
    until(lambda: len(events(handle, FeedReady)) == 2, 60)
    until(lambda: states(handle) == ["ready", "ready"])
    own, other = feed_file(handle).hosts
    assert own.address.startswith(f"unix:@headrace/{handle.id}/algo-1/")
    assert other.address == f"tcp://{stage.address(handle, 'algo-2')}:7070"
    enough(handle)
    assert handle.wait(30) is Status.COMPLETED
    stage.assert_nothing_left(handle)


@pytest.mark.promise("runs", "a feed server that dies is started again, three times")
@both_isolations_at_length
def test_a_feed_server_that_is_killed_is_started_again_and_the_run_is_degraded(stage):
    handle = feeding(stage)
    until(lambda: events(handle, FeedReady), 60)
    before = feed_file(handle).generation
    kill_feed(handle, "algo-2")
    until(lambda: len(events(handle, FeedReady)) == 2, 60)
    until(lambda: states(handle) == ["ready"])
    assert feed_file(handle).generation >= before + 2
    [lost] = events(handle, DataWorkerLost)
    assert (lost.host, lost.reason, lost.recovered) == ("algo-2", "feed server killed by SIGKILL", True)
    enough(handle)
    assert handle.wait(30) is Status.COMPLETED
    assert handle.run.degraded
    stage.assert_nothing_left(handle)


@pytest.mark.promise("runs", "the loss of a data host is no failure while another serves: the run is degraded")
def test_one_of_two_data_hosts_is_lost_and_the_run_goes_on(stage):
    handle = feeding(stage, data=2)
    until(lambda: len(events(handle, FeedReady)) == 2, 60)
    kill(agent_pid(handle, "algo-3"))
    until(lambda: states(handle) == ["ready", "lost"])
    enough(handle)
    assert handle.wait(30) is Status.COMPLETED
    assert handle.exit_code == 0
    assert handle.run.degraded
    stage.assert_nothing_left(handle)


@pytest.mark.promise("faults", "the loss of the last data host ends the job and names it")
@both_isolations_at_length
def test_the_last_data_host_is_lost_and_named(stage):
    handle = feeding(stage)
    until(lambda: events(handle, FeedReady), 60)
    began = time.monotonic()
    kill(agent_pid(handle, "algo-2"))
    assert_failed(handle, began)
    stage.assert_nothing_left(handle)
    assert str(handle.cause) == "data/algo-2[feed]: no data worker is left: host lost: agent killed by SIGKILL"


@pytest.mark.promise("runs", "a feed server that dies is started again, three times")
def test_a_feed_server_that_dies_again_and_again_is_given_up(stage):
    handle = feeding(stage)
    until(lambda: events(handle, FeedReady), 60)
    for attempt in range(4):
        until(lambda attempt=attempt: len(feed_pids(handle, "algo-2")) > attempt)
        began = time.monotonic()
        kill_feed(handle, "algo-2", attempt)
    assert_failed(handle, began)
    stage.assert_nothing_left(handle)
    assert str(handle.cause) == "data/algo-2[feed]: no data worker is left: feed server killed by SIGKILL"
    assert len(feed_pids(handle, "algo-2")) == 4
