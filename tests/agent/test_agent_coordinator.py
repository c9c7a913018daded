"""The job's state machine, step by step, without clock, socket or process."""

import pytest
from agent_plans import make_plan, ranks, scripts, workers

from headrace.agent.control.control_messages import (
    ExecutorLost,
    Exited,
    Heartbeat,
    Hello,
    HostEnded,
    HostLeaving,
    ProgramsEnded,
    Report,
    ServerDown,
    ServerUp,
)
from headrace.agent.coordinator.first_cause import exit_suspect, with_early_leaver
from headrace.agent.coordinator.state_machine import Coordinator, Phase
from headrace.instance.launch_plan import TORCH_DISTRIBUTED, DistributionPlan, Elastic
from headrace.runs import Cause, CauseKind
from headrace.runs.events import DataWorkerLost, HostLost, JobFinished, JobStarted, JobStopping, Status

KILLED = Cause(CauseKind.PROGRAM_EXITED, signal=9)
EXITED = Cause(CauseKind.PROGRAM_EXITED, exit_code=1)
STOPPED = Cause(CauseKind.STOPPED, "stopped by the user")


class Play:
    """Plays a job: sends reports, moves the clock, keeps what was recorded."""

    def __init__(self, plan, now=100.0, **more):
        self.now = now
        self.core = Coordinator(plan, now, **more)
        self.records = []
        self.woken = set()
        self.numbers = {}

    def take(self, effects):
        self.records += effects.records
        self.woken |= effects.wake

    def say(self, host, *messages):
        for message in messages:
            self.numbers[host] = self.numbers.get(host, 0) + 1
            self.take(self.core.report(host, Report(self.numbers[host], message), self.now))

    def come(self, *hosts):
        for host in hosts:
            self.take(self.core.connected(host, self.now))
            self.say(host, Hello("group"))

    def exit(self, host, stream, exit_code=None, number=None, lines=(), stopped=False):
        self.say(host, Exited(stream, self.now, exit_code, number, stopped, tuple(lines)))

    def wait(self, seconds, alive=()):
        for _ in range(round(seconds * 10)):
            self.now = round(self.now + 0.1, 3)
            for host in alive:
                self.take(self.core.report(host, Report(0, Heartbeat()), self.now))
            self.take(self.core.tick(self.now))

    def end(self, *hosts):
        for host in hosts:
            if self.core.orders(host).stop is not None:
                self.say(host, ProgramsEnded())
        for host in hosts:
            self.say(host, HostEnded())

    def of(self, kind):
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def verdict(self):
        return self.core.verdict


def started(*groups, **fields):
    play = Play(make_plan(*groups, **fields))
    play.come(*(host for group in groups for host in group.hosts))
    return play


@pytest.mark.promise("running", "hosts may start in any order, and a wait names the host that did not come")
def test_nothing_starts_before_every_host_has_come_in_any_order():
    play = Play(make_plan(scripts("a", "algo-1", "algo-2"), scripts("b", "algo-3")))
    play.come("algo-3", "algo-1")
    assert play.core.phase is Phase.WAITING
    assert not play.core.orders("algo-1").start
    play.come("algo-2")
    assert play.core.phase is Phase.RUNNING
    assert all(play.core.orders(host).start for host in ("algo-1", "algo-2", "algo-3"))
    assert len(play.of(JobStarted)) == 1


@pytest.mark.promise("running", "hosts may start in any order, and a wait names the host that did not come")
def test_a_host_that_does_not_come_is_named_with_all_others_that_are_missing():
    play = Play(make_plan(scripts("a", "algo-1", "algo-2"), scripts("b", "algo-3"), start_timeout=10.0))
    play.come("algo-1")
    play.wait(10.5, alive=["algo-1"])
    play.end("algo-1")
    assert play.verdict.status is Status.FAILED
    assert play.verdict.cause.host == "algo-2"
    assert "within 10 s; waited for: a/algo-2, b/algo-3" in play.verdict.cause.reason


@pytest.mark.promise("runs", "a job succeeds when all programs of its completion groups exit with 0")
def test_success_needs_every_program_of_the_completion_groups():
    play = started(ranks("dnn", "algo-1", "algo-2"), world=("dnn",))
    for host, stream in (("algo-1", "0"), ("algo-1", "1"), ("algo-2", "2")):
        play.exit(host, stream, 0)
    assert play.core.phase is Phase.RUNNING
    play.exit("algo-2", "3", 0)
    assert play.core.phase is Phase.STOPPING
    play.end("algo-1", "algo-2")
    assert play.verdict == JobFinished(t=play.now, status=Status.COMPLETED)


def test_the_rest_is_stopped_after_success_and_its_exit_does_not_count():
    play = started(scripts("dnn", "algo-1"), scripts("side", "algo-2"), completion_groups=("dnn",), stop_grace=12.0)
    play.exit("algo-1", "0", 0)
    assert play.core.orders("algo-2").stop.grace == 12.0
    play.exit("algo-2", "0", 1)
    play.end("algo-1", "algo-2")
    assert play.verdict.status is Status.COMPLETED


@pytest.mark.promise("sagemaker-differences", "absent here: the first container that ends, ends the job")
def test_another_group_may_end_early_with_zero():
    play = started(scripts("dnn", "algo-1"), scripts("side", "algo-2"), completion_groups=("dnn",))
    play.exit("algo-2", "0", 0)
    assert play.core.phase is Phase.RUNNING


def test_another_group_that_fails_fails_the_job():
    play = started(scripts("dnn", "algo-1"), scripts("side", "algo-2"), completion_groups=("dnn",))
    play.exit("algo-2", "0", 7, lines=["boom"])
    play.wait(1, alive=["algo-1", "algo-2"])
    play.end("algo-1", "algo-2")
    assert play.verdict.status is Status.FAILED
    assert play.verdict.cause == Cause(CauseKind.PROGRAM_EXITED, "", "side", "algo-2", "0", 7, None, ("boom",))


def test_the_killed_rank_is_the_cause_although_its_peer_is_heard_of_first():
    play = started(ranks("dnn", "algo-1", "algo-2", count=1), world=("dnn",))
    play.exit("algo-2", "1", 1, lines=["RuntimeError: Connection closed by peer"])
    play.wait(0.2, alive=["algo-1", "algo-2"])
    assert play.core.phase is Phase.SETTLING
    play.exit("algo-1", "0", None, 9)
    play.wait(0.5, alive=["algo-1", "algo-2"])
    assert play.core.phase is Phase.STOPPING
    play.end("algo-1", "algo-2")
    assert (play.verdict.cause.stream, play.verdict.cause.signal) == ("0", 9)


def test_a_zero_exit_while_settling_does_not_make_success_of_a_failure():
    play = started(scripts("dnn", "algo-1", "algo-2"))
    play.exit("algo-1", "0", 3)
    play.exit("algo-2", "0", 0)
    play.wait(1, alive=["algo-1", "algo-2"])
    play.end("algo-1", "algo-2")
    assert play.verdict.status is Status.FAILED


def test_what_fails_after_the_decision_changes_nothing():
    play = started(scripts("dnn", "algo-1", "algo-2"))
    play.exit("algo-1", "0", 3)
    play.wait(1, alive=["algo-1", "algo-2"])
    play.exit("algo-2", "0", None, 15, stopped=True)
    play.end("algo-1", "algo-2")
    assert play.verdict.cause.exit_code == 3


def test_after_a_failure_nobody_waits_longer_than_five_seconds():
    play = started(scripts("dnn", "algo-1", "algo-2"), stop_grace=120.0)
    play.exit("algo-1", "0", 3)
    play.wait(1, alive=["algo-1", "algo-2"])
    assert play.core.orders("algo-2").stop.grace == 5.0


def test_a_silent_host_is_lost_after_five_seconds_and_fails_the_job():
    play = started(scripts("dnn", "algo-1", "algo-2"))
    play.wait(4.9, alive=["algo-1"])
    assert not play.of(HostLost)
    play.wait(0.8, alive=["algo-1"])
    assert [lost.host for lost in play.of(HostLost)] == ["algo-2"]
    play.wait(1, alive=["algo-1"])
    play.end("algo-1")
    assert play.verdict.status is Status.FAILED
    assert str(play.verdict.cause) == "dnn/algo-2[agent]: silent for 5 s"


def silence(*silent, alive):
    """All hosts run; then these fall silent, one after the other by 0.4 s."""
    play = started(scripts("dnn", "algo-1", "algo-2", "algo-3"))
    for number in range(len(silent)):
        play.wait(0.4, alive=(*alive, *silent[number + 1 :]))
    play.wait(7, alive=alive)
    play.end("algo-1")
    play.wait(20, alive=alive)
    return str(play.verdict.cause)


def test_the_leader_is_cut_off_when_all_others_are_silent():
    words = "dnn/algo-1[agent]: cut off: all other hosts are silent for 5 s"
    assert silence("algo-2", "algo-3", alive=("algo-1",)) == words
    assert silence("algo-2", alive=("algo-1", "algo-3")) == "dnn/algo-2[agent]: silent for 5 s"


def test_a_coordinator_apart_from_the_leaders_host_takes_silence_for_what_it_is():
    play = Play(make_plan(scripts("dnn", "algo-1", "algo-2", "algo-3")), apart=True)
    play.come("algo-1", "algo-2", "algo-3")
    play.wait(7, alive=["algo-1"])
    play.end("algo-1")
    assert str(play.verdict.cause) == "dnn/algo-2[agent]: silent for 5 s"


@pytest.mark.parametrize("host", ["algo-1", "algo-2"])
def test_a_signal_that_no_platform_sent_to_an_agent_fails_the_job_and_is_no_stop(host):
    play = started(scripts("dnn", "algo-1", "algo-2"))
    play.say(host, HostLeaving("SIGTERM", platform=False))
    play.end("algo-1", "algo-2")
    assert play.verdict.status is Status.FAILED
    assert str(play.verdict.cause) == f"the agent of {host} was told to stop by SIGTERM"


def test_the_leaders_host_writes_why_the_job_failed():
    play = started(scripts("dnn", "algo-1", "algo-2"))
    play.exit("algo-2", "0", 3, lines=["ValueError: bad label"])
    play.wait(1, alive=["algo-1", "algo-2"])
    assert play.core.orders("algo-1").failure == ""
    play.end("algo-1", "algo-2")
    assert play.core.orders("algo-1").failure == f"{play.verdict.cause}\nValueError: bad label"
    assert play.core.orders("algo-2").failure == ""


def test_an_agent_that_gave_up_for_want_of_the_coordinator_is_as_silent_as_the_coordinator_was_for_it():
    play = started(scripts("dnn", "algo-1", "algo-2", "algo-3"))
    for host in ("algo-3", "algo-2"):
        play.take(play.core.host_gone(host, "agent exited with code 3", play.now, heard_nothing=True))
    play.wait(1, alive=["algo-1"])
    play.end("algo-1")
    assert [(lost.host, lost.reason) for lost in play.of(HostLost)] == [
        ("algo-3", "silent for 5 s"),
        ("algo-2", "silent for 5 s"),
    ]
    assert str(play.verdict.cause) == "dnn/algo-1[agent]: cut off: all other hosts are silent for 5 s"


def test_the_leader_is_cut_off_from_all_that_serve_data():
    play = started(scripts("dnn", "algo-1"), workers("data", "algo-2", "algo-3"))
    play.say("algo-2", ServerUp("feed", executors=1))
    play.say("algo-3", ServerUp("feed", executors=1))
    play.wait(7, alive=["algo-1"])
    play.end("algo-1")
    assert str(play.verdict.cause) == "dnn/algo-1[agent]: cut off: all other hosts are silent for 5 s"


def test_a_killed_agent_stays_killed_while_all_others_are_silent():
    play = started(scripts("dnn", "algo-1", "algo-2"))
    play.take(play.core.host_gone("algo-2", "agent killed by SIGKILL", play.now))
    play.wait(1, alive=["algo-1"])
    play.end("algo-1")
    assert str(play.verdict.cause) == "dnn/algo-2[agent]: agent killed by SIGKILL"


def test_a_broken_stream_within_the_limit_is_no_loss():
    play = started(scripts("dnn", "algo-1", "algo-2"))
    play.take(play.core.disconnected("algo-2", play.now))
    play.wait(3, alive=["algo-1"])
    play.take(play.core.connected("algo-2", play.now))
    play.wait(3, alive=["algo-1", "algo-2"])
    assert play.core.phase is Phase.RUNNING


def test_a_rank_that_fails_while_a_stream_is_broken_waits_for_the_lost_host_to_be_named():
    play = started(ranks("dnn", "algo-1", "algo-2", count=1), world=("dnn",))
    play.take(play.core.disconnected("algo-2", play.now))
    play.exit("algo-1", "0", 1, lines=["Connection reset by peer"])
    play.wait(4, alive=["algo-1"])
    assert play.core.phase is Phase.SETTLING
    play.wait(2, alive=["algo-1"])
    play.end("algo-1")
    assert play.verdict.cause.host == "algo-2"


def test_who_knows_that_an_agent_is_gone_need_not_wait_for_the_silence():
    play = started(scripts("dnn", "algo-1", "algo-2"))
    play.take(play.core.host_gone("algo-2", "agent killed by SIGKILL", play.now))
    play.wait(0.6, alive=["algo-1"])
    play.end("algo-1")
    assert str(play.verdict.cause) == "dnn/algo-2[agent]: agent killed by SIGKILL"


def test_when_this_process_stood_still_the_others_are_not_lost():
    play = started(scripts("dnn", "algo-1", "algo-2"))
    play.take(play.core.tick(play.now))
    play.now += 60.0
    play.take(play.core.tick(play.now))
    play.wait(1, alive=["algo-1", "algo-2"])
    assert not play.of(HostLost)


def test_a_host_whose_programs_are_done_may_be_lost():
    play = started(scripts("dnn", "algo-1", "algo-2"))
    play.exit("algo-2", "0", 0)
    play.take(play.core.host_gone("algo-2", "agent killed by SIGKILL", play.now))
    play.wait(1, alive=["algo-1"])
    play.exit("algo-1", "0", 0)
    play.end("algo-1")
    assert play.verdict.status is Status.COMPLETED


def test_a_report_that_is_sent_again_is_taken_once():
    play = started(scripts("dnn", "algo-1"), scripts("side", "algo-2"))
    play.say("algo-1", ExecutorLost(1, KILLED, True))
    again = Report(play.numbers["algo-1"], ExecutorLost(1, KILLED, True))
    play.take(play.core.report("algo-1", again, play.now))
    assert len(play.of(DataWorkerLost)) == 1
    assert play.core.orders("algo-1").ack == 2


def feeding():
    return started(scripts("dnn", "algo-1"), workers("data", "algo-2", "algo-3"))


def test_feed_hosts_become_ready_and_every_host_is_told():
    play = feeding()
    generation = play.core.orders("algo-1").feed_generation
    play.woken.clear()
    play.say("algo-2", ServerUp("feed", executors=4))
    orders = play.core.orders("algo-1")
    assert orders.feed_generation == generation + 1
    assert [(host.host, host.state, host.executors) for host in orders.feed] == [
        ("algo-2", "ready", 4),
        ("algo-3", "starting", 2),
    ]
    assert orders.feed[0].address == "tcp://127.78.1.2:7070"
    assert "algo-1" in play.woken


@pytest.mark.promise("runs", "the loss of a data host is no failure while another serves: the run is degraded")
def test_the_loss_of_a_data_host_degrades_the_run_while_another_serves():
    play = feeding()
    play.say("algo-2", ServerUp("feed", executors=2))
    play.say("algo-3", ServerUp("feed", executors=2))
    play.take(play.core.host_gone("algo-2", "agent killed by SIGKILL", play.now))
    play.wait(3, alive=["algo-1", "algo-3"])
    assert play.core.phase is Phase.RUNNING
    assert [(lost.host, lost.recovered) for lost in play.of(DataWorkerLost)] == [("algo-2", False)]
    assert [host.state for host in play.core.orders("algo-1").feed] == ["lost", "ready"]
    play.exit("algo-1", "0", 0)
    play.end("algo-1", "algo-3")
    assert play.verdict.status is Status.COMPLETED


def test_a_feed_server_that_is_started_again_is_recovered():
    play = feeding()
    play.say("algo-2", ServerUp("feed", executors=2), ServerDown("feed", KILLED, gone=False))
    assert [host.state for host in play.core.orders("algo-1").feed] == ["starting", "starting"]
    assert play.of(DataWorkerLost)[0].recovered
    play.say("algo-2", ServerUp("feed", executors=2))
    assert play.core.orders("algo-1").feed[0].state == "ready"


def test_when_the_last_feed_host_is_gone_the_job_fails_and_names_it():
    play = feeding()
    play.say("algo-2", ServerDown("feed", EXITED, gone=True))
    assert play.core.phase is Phase.RUNNING
    play.say("algo-3", ServerUp("feed", executors=2), ServerDown("feed", KILLED, gone=True))
    play.wait(1, alive=["algo-1", "algo-2", "algo-3"])
    play.end("algo-1", "algo-2", "algo-3")
    assert play.verdict.status is Status.FAILED
    assert str(play.verdict.cause) == "data/algo-3[feed]: no data worker is left: feed server killed by SIGKILL"
    assert [event.fatal for event in play.of(DataWorkerLost)] == [False, True]


def test_a_trainer_that_gave_up_on_its_feed_is_not_blamed():
    play = started(scripts("dnn", "algo-1"), workers("data", "algo-2"))
    play.say("algo-2", ServerUp("feed", executors=2), ServerDown("feed", KILLED, gone=False))
    play.exit("algo-1", "0", 1, lines=["headrace.errors.WorkersLost: no worker"])
    play.wait(1, alive=["algo-1", "algo-2"])
    play.end("algo-1", "algo-2")
    cause = play.verdict.cause
    assert (cause.host, cause.stream) == ("algo-2", "feed")
    assert "dnn/algo-1[0] then exited with code 1" in cause.reason


def test_a_trainer_that_fails_while_its_feed_serves_is_blamed():
    play = feeding()
    play.say("algo-2", ServerUp("feed", executors=2))
    play.say("algo-3", ServerDown("feed", KILLED, gone=True))
    play.exit("algo-1", "0", 1, lines=["ValueError"])
    play.wait(1, alive=["algo-1", "algo-2", "algo-3"])
    play.end("algo-1", "algo-2", "algo-3")
    assert play.verdict.cause.stream == "0"


def test_the_feed_is_stopped_after_the_programs_so_that_they_can_save():
    play = feeding()
    play.take(play.core.stop_requested(Status.STOPPED, STOPPED, None, play.now))
    assert not play.core.orders("algo-2").stop.feed
    play.say("algo-1", ProgramsEnded())
    assert play.core.orders("algo-2").stop.feed


def test_a_stop_by_the_user_ends_as_stopped_whatever_the_programs_say():
    play = started(scripts("dnn", "algo-1"), stop_grace=7.0)
    play.take(play.core.stop_requested(Status.STOPPED, STOPPED, None, play.now))
    assert play.core.orders("algo-1").stop.grace == 7.0
    play.exit("algo-1", "0", 0, stopped=True)
    play.end("algo-1")
    assert (play.verdict.status, play.verdict.cause.reason) == (Status.STOPPED, "stopped by the user")


def leave(play: Play, host: str) -> None:
    play.say(host, HostLeaving("SIGTERM"))


@pytest.mark.promise("engines", "SIGTERM by a platform gives time to save; only the user's stop is Stopped")
def test_a_host_that_its_platform_ends_is_an_infrastructure_failure_with_time_to_save_for_all():
    play = started(ranks("dnn", "algo-1", "algo-2"), world=("dnn",), stop_grace=7.0)
    play.exit("algo-2", "2", None, number=15)  # the platform signals programs too, and its peers lose it
    play.exit("algo-1", "0", 1, lines=["Connection reset by peer"])
    leave(play, "algo-2")
    play.wait(1, alive=["algo-1", "algo-2"])
    assert play.core.orders("algo-1").stop.grace == 7.0
    play.end("algo-1", "algo-2")
    cause = play.verdict.cause
    assert play.verdict.status is Status.FAILED
    assert (cause.kind, cause.host, cause.infrastructure) == (CauseKind.HOST_LOST, "algo-2", True)
    assert cause.reason == "its agent was told to end by SIGTERM, by the platform"


def test_a_stop_by_the_platform_leaves_time_to_save_although_programs_have_ended_by_its_signal_already():
    play = started(ranks("dnn", "algo-1", "algo-2"), world=("dnn",), stop_grace=60.0)
    play.exit("algo-2", "2", None, number=15)
    cause = Cause(CauseKind.ENGINE_FAILED, "preempted", infrastructure=True)
    play.take(play.core.stop_requested(Status.FAILED, cause, 15.0, play.now))
    assert play.core.orders("algo-1").stop.grace == 15.0
    play.end("algo-1", "algo-2")
    assert play.verdict.cause == cause


def test_when_its_platform_ends_a_host_that_nobody_needs_the_job_goes_on():
    play = feeding()
    for host in ("algo-2", "algo-3"):
        play.say(host, ServerUp("feed", executors=2))
    leave(play, "algo-3")
    play.wait(1, alive=["algo-1", "algo-2", "algo-3"])
    assert play.core.phase is Phase.RUNNING
    leave(play, "algo-1")  # the leader
    play.wait(1, alive=["algo-1", "algo-2", "algo-3"])
    assert play.core.phase is Phase.STOPPING


def test_the_second_stop_takes_the_grace_away():
    play = started(scripts("dnn", "algo-1"))
    for grace in (None, 0.0):
        play.take(play.core.stop_requested(Status.STOPPED, STOPPED, grace, play.now))
    stop = play.core.orders("algo-1").stop
    assert (stop.grace, stop.feed) == (0.0, True)


def test_a_stop_does_not_hide_a_failure_that_came_first():
    play = started(scripts("dnn", "algo-1"))
    play.exit("algo-1", "0", 3)
    play.take(play.core.stop_requested(Status.STOPPED, STOPPED, None, play.now))
    play.end("algo-1")
    assert play.verdict.status is Status.FAILED


def test_a_stop_before_all_hosts_have_come_starts_nothing():
    play = Play(make_plan(scripts("dnn", "algo-1", "algo-2")))
    play.come("algo-1")
    play.take(play.core.stop_requested(Status.STOPPED, STOPPED, None, play.now))
    play.end("algo-1")
    assert play.verdict.status is Status.STOPPED
    assert not play.of(JobStarted)
    play.come("algo-2")
    assert play.core.orders("algo-2").stop is not None


def test_max_run_stops_the_job_with_its_name():
    play = started(scripts("dnn", "algo-1"), max_run=20.0)
    play.wait(19, alive=["algo-1"])
    assert play.core.phase is Phase.RUNNING
    play.wait(2, alive=["algo-1"])
    play.end("algo-1")
    assert play.verdict.status is Status.STOPPED
    assert play.verdict.cause.reason.startswith("MaxRuntimeExceeded")


def test_a_host_that_does_not_stop_is_given_up():
    play = started(scripts("dnn", "algo-1", "algo-2"), stop_grace=1.0)
    play.exit("algo-1", "0", 3)
    play.wait(1, alive=["algo-1", "algo-2"])
    play.end("algo-1")
    play.wait(12, alive=["algo-1", "algo-2"])
    assert play.verdict.status is Status.FAILED
    assert [lost.host for lost in play.of(HostLost)] == ["algo-2"]


def test_a_host_that_ends_unasked_is_lost():
    play = started(scripts("dnn", "algo-1", "algo-2"))
    play.say("algo-2", HostEnded())
    play.wait(1, alive=["algo-1"])
    play.end("algo-1")
    assert play.verdict.cause.host == "algo-2"


def test_a_lost_host_that_comes_back_is_told_to_end():
    play = started(scripts("dnn", "algo-1"), workers("data", "algo-2", "algo-3"))
    play.take(play.core.host_gone("algo-2", "silent", play.now))
    stop = play.core.orders("algo-2").stop
    assert (stop.grace, stop.feed) == (0.0, True)


@pytest.mark.promise("runs", "no order of events leads from a failure to a success, and no failure ends with 0")
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.promise(
    "sagemaker-differences", "absent here: a failure ends with exit code 0 (an `OSError` without number)"
)
def test_no_order_of_events_leads_from_a_failure_to_completed(seed):
    import random

    rng = random.Random(seed)
    play = started(ranks("dnn", "algo-1", "algo-2"), workers("data", "algo-3"), world=("dnn",))
    play.say("algo-3", ServerUp("feed", executors=2))
    streams = [("algo-1", "0"), ("algo-1", "1"), ("algo-2", "2"), ("algo-2", "3")]
    rng.shuffle(streams)
    bad = rng.randrange(4)
    for index, (host, stream) in enumerate(streams):
        code = rng.choice([1, 3, 137]) if index == bad else rng.choice([0, 0, 1])
        play.exit(host, stream, code)
        play.wait(rng.choice([0.0, 0.1, 0.7]), alive=["algo-1", "algo-2", "algo-3"])
    play.wait(1, alive=["algo-1", "algo-2", "algo-3"])
    play.end("algo-1", "algo-2", "algo-3")
    assert play.verdict.status is Status.FAILED
    assert len(play.of(JobStopping)) == 1


def elastic(minimum=1, hosts=("algo-1", "algo-2", "algo-3")):
    world = DistributionPlan(TORCH_DISTRIBUTED, ("dnn",), elastic=Elastic(minimum, 3))
    return started(ranks("dnn", *hosts), distributions=(world,))


def test_an_elastic_world_completes_without_a_host_that_was_lost():
    play = elastic()
    play.take(play.core.host_gone("algo-3", "its agent was killed by SIGKILL", play.now))
    play.wait(3, alive=("algo-1", "algo-2"))
    assert play.core.phase is Phase.RUNNING
    assert [(lost.host, lost.reason) for lost in play.of(HostLost)] == [("algo-3", "its agent was killed by SIGKILL")]
    assert play.core.orders("algo-3").stop is not None
    play.exit("algo-1", "torchrun", 0)
    assert play.core.phase is Phase.RUNNING
    play.exit("algo-2", "torchrun", 0)
    play.end("algo-1", "algo-2")
    assert play.verdict.status is Status.COMPLETED


def test_an_elastic_world_goes_on_when_a_torchrun_is_killed():
    play = elastic(minimum=2)
    play.exit("algo-2", "torchrun", number=9)
    play.wait(1, alive=("algo-1", "algo-2", "algo-3"))
    assert play.core.phase is Phase.RUNNING
    assert play.of(HostLost)[0].reason == "torchrun was killed by SIGKILL"
    play.exit("algo-3", "torchrun", number=9)  # too few are left
    play.wait(1, alive=("algo-1", "algo-3"))
    play.end("algo-1", "algo-3")
    assert play.verdict.status is Status.FAILED
    assert (play.verdict.cause.host, play.verdict.cause.signal) == ("algo-3", 9)


def test_a_torchrun_that_gives_up_fails_the_job_at_once():
    play = elastic()
    play.exit("algo-2", "torchrun", 1)
    play.wait(1, alive=("algo-1", "algo-2", "algo-3"))
    play.end("algo-1", "algo-2", "algo-3")
    assert play.verdict.status is Status.FAILED
    assert play.verdict.cause.host == "algo-2"


@pytest.mark.parametrize(("host", "minimum"), [("algo-1", 1), ("algo-3", 3)])
def test_an_elastic_world_without_its_first_host_or_with_too_few_fails(host, minimum):
    play = elastic(minimum)
    play.take(play.core.host_gone(host, "gone", play.now))
    others = [name for name in ("algo-1", "algo-2", "algo-3") if name != host]
    play.wait(1, alive=others)
    play.end(*others)
    assert play.verdict.status is Status.FAILED
    assert (play.verdict.cause.host, play.verdict.cause.reason) == (host, "gone")


def test_two_worlds_complete_when_both_have():
    worlds = (DistributionPlan(TORCH_DISTRIBUTED, ("a",)), DistributionPlan(TORCH_DISTRIBUTED, ("b",)))
    play = started(
        ranks("a", "algo-1", count=1),
        ranks("b", "algo-2", count=1),
        scripts("side", "algo-3"),
        distributions=worlds,
        completion_groups=("a", "b"),
    )
    play.exit("algo-1", "0", 0)
    play.wait(1, alive=("algo-1", "algo-2", "algo-3"))
    assert play.core.phase is Phase.RUNNING
    play.exit("algo-2", "0", 0)
    assert play.core.phase is Phase.STOPPING


def test_a_heartbeat_is_no_reason_to_look_at_all_hosts() -> None:
    play = started(scripts("group", "algo-1", "algo-2"))
    play.exit("algo-2", "0", exit_code=1)
    play.now += 1
    for host in ("algo-1", "algo-2"):
        effects = play.core.report(host, Report(0, Heartbeat()), play.now)
        assert (effects.records, effects.wake, play.core.phase) == ([], set(), Phase.SETTLING)
    play.take(play.core.tick(play.now))
    assert play.of(JobStopping), "a tick does"


GLOO = ("RuntimeError: [pair.cc:534] Connection closed by peer [127.0.1.1]:1234",)
HOROVOD = ("HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of the ranks",)
REFUSED = ("ConnectionRefusedError: [Errno 111] Connection refused",)


def early_leaver(lines, code=1):
    play = started(ranks("a", "algo-1", "algo-2", count=2), world=("a",))
    play.exit("algo-2", "3", 0, lines=("done",))
    play.wait(0.2, alive=("algo-1", "algo-2"))
    play.exit("algo-2", "2", 0)
    play.wait(0.2, alive=("algo-1", "algo-2"))
    play.exit("algo-1", "0", code, lines=lines)
    play.wait(2, alive=("algo-1", "algo-2"))
    return play.of(JobStopping)[-1].reason


def test_a_rank_that_left_early_with_0_is_the_cause_when_a_collective_operation_lost_it():
    assert early_leaver(GLOO) == (
        "a/algo-2[3]: exited with code 0: it left while others of its world still needed it; "
        "a/algo-1[0] then exited with code 1"
    )


def test_a_rank_that_left_with_0_is_only_named_when_the_lost_connection_may_be_another():
    reason = early_leaver(REFUSED)
    assert reason.startswith("a/algo-1[0]: exited with code 1")
    assert reason.endswith("Perhaps because a/algo-2[3] had left before, with exit code 0")


def test_a_rank_that_left_with_0_is_not_named_when_another_one_raised():
    assert "algo-2" not in early_leaver(("ValueError: bad label",), 3)


def test_a_rank_of_horovod_that_was_shut_down_is_not_the_cause():
    play = started(ranks("a", "algo-1", "algo-2", count=1), world=("a",))
    play.exit("algo-1", "0", 1, lines=HOROVOD)
    play.wait(0.1, alive=("algo-1", "algo-2"))
    play.exit("algo-2", "1", 1, lines=("RuntimeError: loss is NaN",))
    play.wait(2, alive=("algo-1", "algo-2"))
    assert play.of(JobStopping)[-1].reason.startswith("a/algo-2[1]: exited with code 1")


def test_mpirun_that_ended_the_others_names_the_rank_that_left_with_0_unless_all_did():
    plan = make_plan(
        ranks("a", "algo-1", count=2), distributions=(DistributionPlan("mpi", ("a",)),), completion_groups=("a",)
    )
    exits = {"0": Exited("0", 5.0, 0), "1": Exited("1", 4.0, 0)}
    mpirun = exit_suspect("a", "algo-1", Exited("mpirun", 6.0, exit_code=1))
    cause = with_early_leaver(plan, mpirun, {"algo-1": {"1": exits["1"], "0": Exited("0", 5.5, None, 15, True)}})
    assert (cause.host, cause.stream, cause.exit_code, cause.then) == ("algo-1", "1", 0, mpirun.cause)
    assert with_early_leaver(plan, mpirun, {"algo-1": exits}) == mpirun.cause


def test_reports_of_hundreds_of_hosts_are_looked_at_together_and_make_few_lists_of_feed_servers() -> None:
    """A look is at all hosts, a list goes to all ranks: at each report they would cost the square, and the cube."""
    names = [f"algo-{number}" for number in range(1, 401)]
    play = Play(make_plan(ranks("dnn", *names[:200], count=1), workers("data", *names[200:]), world=("dnn",)))
    play.come(*names)
    assert play.core.phase is Phase.WAITING
    play.wait(0.1)
    assert play.core.phase is Phase.RUNNING
    generation = play.core.orders("algo-1").feed_generation
    for _ in range(4):
        for name in names[200:]:
            play.say(name, ServerUp("feed", executors=2))
        play.wait(0.1)
    assert {host.state for host in play.core.orders("algo-1").feed} == {"ready"}
    assert play.core.orders("algo-1").feed_generation <= generation + 4
    assert play.core.orders("algo-400").feed == (), "it has no program that reads it"
    play.woken.clear()
    play.say("algo-400", ServerDown("feed", KILLED, gone=False))
    play.wait(0.2, alive=names)
    assert play.woken == set(names[:200])
    for number, name in enumerate(names[:200]):
        play.exit(name, str(number), 0)
    play.wait(0.1)
    assert play.core.phase is Phase.STOPPING
