"""Hosts with data workers: the feed server beside and without ranks, its death, its end."""

import time

import msgspec
import pytest
from effort import SOAK
from run_places import WITHOUT_TORCH, flag, pid_here
from stage import (
    agent_pid,
    assert_failed,
    both_isolations_at_length,
    groups,
    kill,
    said,
    text,
    until,
)

from headrace.instance.launch_plan import FeedHosts
from headrace.runs import Status, Stream, WorkerSecond
from headrace.runs.events import DataWorkerLost, FeedReady, ProgramExited, ProgramStarted

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


def worker_seconds(handle, host):
    found = handle.run.metrics().get(Stream("data", host, "feed"), [])
    return [metric for metric in found if isinstance(metric, WorkerSecond)]


def feed_pids(handle, host):
    started = events(handle, ProgramStarted)
    return [event.pid for event in started if (event.host, event.stream) == (host, "feed")]


def kill_feed(handle, host, attempt=0):
    kill(pid_here(agent_pid(handle, host), feed_pids(handle, host)[attempt]))


def enough(handle):
    flag(handle, "enough")


if SOAK:  # in every run: one of two data hosts is lost and the run goes on to its end

    @both_isolations_at_length
    def test_a_data_host_serves_and_ends_with_the_job(stage):
        handle = feeding(stage)
        until(lambda: events(handle, FeedReady), 60)
        until(lambda: states(handle) == ["ready"])
        [host] = feed_file(handle).hosts
        assert (host.host, host.group, host.address, host.executors) == (
            "algo-2",
            "data",
            f"tcp://{stage.address(handle, 'algo-2')}:7070",
            1,
        )
        assert feed_file(handle).secret_file == f"{stage.base(handle, 'algo-1')}/input/data/headrace/secret"
        assert len((handle.paths.host("algo-1") / "input/data/headrace/secret").read_text()) == 64
        until(said(handle, "running"))
        assert not any(line.text.startswith("running") for line in handle.logs("data"))
        until(lambda: worker_seconds(handle, "algo-2"), 10)
        enough(handle)
        assert handle.wait(30) is Status.COMPLETED
        stage.assert_nothing_left(handle)
        for second in worker_seconds(handle, "algo-2"):  # nobody asked
            assert (second.loader, second.executors, second.idle) == ("", 1, second.seconds)
            assert second.produce == second.blocked == second.samples == 0
        [feed] = [event for event in events(handle, ProgramExited) if event.stream == "feed"]
        assert (feed.exit_code, feed.stopped) == (0, True)
        assert not handle.run.degraded


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


if SOAK:  # in every run: a trainer that saves on SIGTERM keeps its workers, test_local_order.py

    def test_programs_that_save_at_the_end_still_have_their_feed(stage):
        script = """
        import os, signal, socket, sys, time
        import json
        def save(*_):
            time.sleep(0.8)
            address = json.load(open(os.environ["HEADRACE_FEED"]))["hosts"][0]["address"].removeprefix("tcp://")
            host, port = address.split(":")
            socket.create_connection((host, int(port)), 2).close()
            print("feed is there", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("running", flush=True)
        time.sleep(600)
        """
        handle = feeding(stage, script=script)
        until(lambda: events(handle, FeedReady), 60)
        until(said(handle, "running"))
        handle.stop()
        assert handle.wait(20) is Status.STOPPED
        assert "feed is there" in text(handle)
        stage.assert_nothing_left(handle)
