"""The coordinator and tf.data.service: readiness, versions, deaths, and who is blamed."""

import msgspec
import pytest
from agent_plans import make_plan, scripts, workers
from test_agent_coordinator import Play

from headrace.agent.control.control_messages import Heartbeat, Ready, Report, ServerDown, ServerUp
from headrace.agent.coordinator.data_services import GONE_LIMIT, MEMORY_WINDOW, SPIN_LIMIT
from headrace.agent.coordinator.state_machine import Phase
from headrace.instance.launch_plan import Readiness, TfDataPlan
from headrace.processes.oom import whose_memory
from headrace.runs import Cause, CauseKind
from headrace.runs.event_text import sentence
from headrace.runs.events import DataWorkerLost, HostReleased, ServerReady, Status

KILLED = Cause(CauseKind.PROGRAM_EXITED, signal=9)
EXITED = Cause(CauseKind.PROGRAM_EXITED, exit_code=1)


def play(*, dnn=None, up=("algo-1", "algo-2"), **fields):
    """`data` (algo-1) with the dispatcher, `dnn` (algo-2); both have a worker."""
    plan = make_plan(workers("data", "algo-1", feed=0), dnn or scripts("dnn", "algo-2"),
                     **{"tf_data": TfDataPlan(("data", "dnn")), **fields})  # fmt: skip
    made = Play(plan)
    made.come("algo-1", "algo-2")
    if "algo-1" in up:
        made.say("algo-1", ServerUp("tf-dispatcher", "2.21.0"))
    for host in up:
        made.say(host, ServerUp("tf-worker-0", "2.21.0"))
    return made


def refused(why):
    return Cause(CauseKind.DATA_SERVICE_REFUSED, why)


ALIVE = ("algo-1", "algo-2")


def test_each_server_that_serves_is_recorded_with_its_version():
    ready = play().of(ServerReady)
    assert [(event.host, event.stream, event.version) for event in ready] == [
        ("algo-1", "tf-dispatcher", "2.21.0"),
        ("algo-1", "tf-worker-0", "2.21.0"),
        ("algo-2", "tf-worker-0", "2.21.0"),
    ]


@pytest.mark.parametrize(("version", "fits"), [("2.21.1", True), ("2.20.0", False), ("3.21.0", False)])
def test_servers_must_have_one_minor_version(version, fits):
    job = play(up=("algo-1",))
    job.say("algo-2", ServerUp("tf-worker-0", version))
    job.wait(1, ALIVE)
    assert (job.core.phase is Phase.RUNNING) is fits
    if not fits:
        job.end(*ALIVE)
        assert job.verdict.status is Status.FAILED
        assert "2.21.0 on data/algo-1 (tf-dispatcher)" in job.verdict.cause.reason
        assert f"{version} on dnn/algo-2 (tf-worker-0)" in job.verdict.cause.reason


@pytest.mark.promise("tensorflow", "tf.data.service is started, watched, started again and stopped")
def test_a_server_that_is_started_again_degrades_the_run_and_nothing_else():
    job = play()
    for stream in ("tf-worker-0", "tf-dispatcher"):
        job.say("algo-1", ServerDown(stream, KILLED, False), ServerUp(stream, "2.21.0"))
    job.wait(GONE_LIMIT + 30, ALIVE)
    assert job.core.phase is Phase.RUNNING
    lost = job.of(DataWorkerLost)
    assert [event.recovered for event in lost] == [True, True]
    assert [event.reason for event in lost] == [f"{event.stream} killed by SIGKILL" for event in lost]


@pytest.mark.promise("tensorflow", "tf.data.service is started, watched, started again and stopped")
def test_a_dispatcher_that_is_gone_for_good_ends_the_job():
    job = play()
    job.say("algo-1", ServerDown("tf-dispatcher", EXITED, True))
    job.wait(1, ALIVE)
    job.end(*ALIVE)
    assert str(job.verdict.cause) == (
        "data/algo-1[tf-dispatcher]: no dispatcher of tf.data.service is left: tf-dispatcher exited with code 1"
    )


def test_the_job_ends_with_its_last_worker():
    job = play()
    job.say("algo-1", ServerDown("tf-worker-0", KILLED, True))
    job.wait(1, ALIVE)
    assert job.core.phase is Phase.RUNNING
    job.say("algo-2", ServerDown("tf-worker-0", Cause(CauseKind.PROGRAM_EXITED, signal=11), True))
    job.wait(1, ALIVE)
    job.end(*ALIVE)
    assert str(job.verdict.cause) == (
        "dnn/algo-2[tf-worker-0]: no worker of tf.data.service is left, all 2 are down, the last first: "
        "dnn/algo-2[tf-worker-0] killed by SIGSEGV; data/algo-1[tf-worker-0] killed by SIGKILL"
    )
    assert [sentence(event).rpartition("; ")[2] for event in job.of(DataWorkerLost)] == [
        "the job goes on without it",
        "the job cannot go on",
    ]


def test_a_lost_host_takes_its_servers_with_it_and_counts_as_infrastructure():
    job = play()
    job.take(job.core.host_gone("algo-1", "its agent was killed", job.now))
    job.wait(1, ("algo-2",))
    job.end("algo-2")
    cause = job.verdict.cause
    assert (cause.stream, cause.infrastructure) == ("tf-dispatcher", True)
    assert [(event.recovered, event.fatal) for event in job.of(DataWorkerLost)] == [(False, True), (False, True)]


def test_a_worker_that_is_gone_for_good_is_named_when_nothing_moves_any_more():
    job = play()
    job.wait(5, ALIVE)
    job.say("algo-2", ServerDown("tf-worker-0", KILLED, True))
    job.wait(GONE_LIMIT - 2, ALIVE)
    assert job.core.phase is Phase.RUNNING
    job.wait(4, ALIVE)
    job.end(*ALIVE)
    cause = job.verdict.cause
    assert (cause.group, cause.host, cause.stream) == ("dnn", "algo-2", "tf-worker-0")
    assert cause.reason.startswith(
        "is gone for good, and TensorFlow's client may wait for it: tf-worker-0 killed by SIGKILL; stalled: "
    )
    assert "dnn/algo-2[0]" in cause.reason


def lost_one(**fields):
    """A job that has lost the worker of algo-2 for good."""
    job = play(**fields)
    job.wait(5, ALIVE)
    job.say("algo-2", ServerDown("tf-worker-0", KILLED, True))
    return job


def quietly(job, seconds, *, idle=1e6, unsent=1e6):
    """Nothing is printed or measured. `idle`, `unsent`: what the hosts tell each second."""
    for _ in range(round(seconds)):
        for host in ALIVE:
            beat = Heartbeat({"0": 1e6} if host == "algo-2" else {}, idle, unsent)
            job.take(job.core.report(host, Report(0, beat), job.now))
        job.wait(1, ALIVE)


@pytest.mark.parametrize("working", [{"unsent": 0.5}, {"idle": 0.5}])
def test_a_quiet_training_goes_on_without_a_worker_while_another_one_sends_data_or_a_host_computes(working):
    job = lost_one()
    quietly(job, 3 * GONE_LIMIT, **working)
    assert job.core.phase is Phase.RUNNING
    quietly(job, GONE_LIMIT - 3)
    assert job.core.phase is Phase.RUNNING
    quietly(job, 5)
    job.end(*ALIVE)
    reason = job.verdict.cause.reason
    assert "stalled: no output or metrics for 60 s; the quietest: dnn/algo-2[0]" in reason
    assert "no worker of tf.data.service sent anything" in reason
    assert "no host used 10% of a core or a GPU" in reason


def test_ranks_that_only_spin_do_not_keep_a_job_without_data_for_ever_and_its_own_limit_comes_first():
    spins = lost_one()
    quietly(spins, SPIN_LIMIT - 3, idle=0.5)
    assert spins.core.phase is Phase.RUNNING
    quietly(spins, 5, idle=0.5)
    spins.end(*ALIVE)
    assert "stalled: no output or metrics for 600 s" in spins.verdict.cause.reason
    assert "though processes used CPUs or GPUs" in spins.verdict.cause.reason
    reads = lost_one()
    quietly(reads, SPIN_LIMIT + 60, unsent=0.5)
    assert reads.core.phase is Phase.RUNNING
    limited = lost_one(stall_after=90.0)
    quietly(limited, 80, idle=0.5, unsent=0.5)
    assert limited.core.phase is Phase.RUNNING
    quietly(limited, 15, idle=0.5, unsent=0.5)
    assert limited.core.phase is Phase.STOPPING


OOM = Cause(CauseKind.OUT_OF_MEMORY, whose_memory(3 << 29), signal=9)


@pytest.mark.parametrize("hosts", [("algo-1", "algo-1"), ("algo-1", "algo-2")])
def test_the_second_kill_for_memory_ends_the_job_which_names_the_limit_and_what_to_do(hosts):
    job = play()
    job.say(hosts[0], ServerDown("tf-worker-0", OOM, False), ServerUp("tf-worker-0", "2.21.0"))
    job.wait(30, ALIVE)
    assert job.core.phase is Phase.RUNNING
    job.say(hosts[1], ServerDown("tf-worker-0", OOM, False))
    job.wait(1, ALIVE)
    job.end(*ALIVE)
    cause = job.verdict.cause
    assert (cause.host, cause.stream) == (hosts[1], "tf-worker-0")
    assert (
        "for memory twice within an hour, the last: tf-worker-0 killed by the kernel for memory (OOM)" in cause.reason
    )
    assert "the instance's limit is 1.5 GiB; the pipeline needs less memory" in cause.reason
    assert [(event.recovered, event.fatal) for event in job.of(DataWorkerLost)] == [(True, False), (False, True)]


def test_kills_for_memory_that_are_more_than_an_hour_apart_do_not_end_the_job():
    job = play()
    for _ in range(3):
        job.say("algo-1", ServerDown("tf-worker-0", OOM, False), ServerUp("tf-worker-0", "2.21.0"))
        job.now += MEMORY_WINDOW
    assert job.core.phase is Phase.RUNNING


def test_a_server_that_cannot_run_where_it_should_ends_the_job_though_others_serve():
    job = play(up=("algo-1",))
    job.say("algo-2", ServerDown("tf-worker-0", refused("cannot import tensorflow; install it"), True, refused=True))
    job.wait(1, ALIVE)
    job.end(*ALIVE)
    assert str(job.verdict.cause) == (
        "dnn/algo-2[tf-worker-0]: a server of tf.data.service cannot run: cannot import tensorflow; install it"
    )
    later = play()  # it has served: somebody took its port while it was down
    later.say("algo-2", ServerDown("tf-worker-0", refused("port 7073 is in use"), True, refused=True))
    later.wait(1, ALIVE)
    assert later.core.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("tolerant", "word", "blamed"),
    [
        (False, "NotFoundError: Iteration id 2000 not found", "tf-dispatcher"),
        (False, "ValueError: a mistake of the script", "0"),
        (True, "NotFoundError: Iteration id 2000 not found", "0"),
    ],
)
def test_a_dispatcher_that_forgot_is_named_when_a_rank_fails_for_it_later(tolerant, word, blamed):
    job = play(tf_data=TfDataPlan(("data", "dnn"), fault_tolerant=tolerant))
    job.say("algo-1", ServerDown("tf-dispatcher", KILLED, False), ServerUp("tf-dispatcher", "2.21.0"))
    job.wait(30, ALIVE)
    assert job.core.phase is Phase.RUNNING  # a trainer that has read all its data can go on
    job.exit("algo-2", "0", 1, lines=("Traceback", word))
    job.wait(1, ALIVE)
    job.end(*ALIVE)
    cause = job.verdict.cause
    assert cause.stream == blamed
    if blamed == "tf-dispatcher":
        assert cause.reason == (
            "the dispatcher of tf.data.service has lost its state (fault_tolerant: false): tf-dispatcher killed by "
            "SIGKILL; dnn/algo-2[0] then exited with code 1"
        )


def test_the_job_s_own_limit_holds_when_it_is_shorter_and_without_a_loss_nothing_stalls():
    job = play(stall_after=10.0)
    job.wait(5, ALIVE)
    job.say("algo-2", ServerDown("tf-worker-0", KILLED, True))
    job.wait(11, ALIVE)
    assert job.core.phase is Phase.STOPPING
    quiet = play()
    quiet.wait(GONE_LIMIT + 30, ALIVE)
    assert quiet.core.phase is Phase.RUNNING


def test_a_worker_that_is_not_back_yet_is_named_by_the_job_s_own_limit_only():
    slow = play(stall_after=10.0)
    slow.say("algo-1", ServerDown("tf-worker-0", KILLED, False))
    slow.wait(11, ALIVE)
    slow.end(*ALIVE)
    words = str(slow.verdict.cause)
    assert words.startswith(
        "data/algo-1[tf-worker-0]: is not back, and TensorFlow's client may wait for it: tf-worker-0"
    )
    assert "stalled: no output or metrics for 10 s" in words
    free = play()
    free.say("algo-1", ServerDown("tf-worker-0", KILLED, False))
    free.wait(GONE_LIMIT + 30, ALIVE)
    assert free.core.phase is Phase.RUNNING


def test_a_trainer_that_fails_while_nobody_serves_is_not_blamed():
    job = play()
    job.say("algo-1", ServerDown("tf-dispatcher", KILLED, False))
    job.exit("algo-2", "0", 1)
    job.wait(1, ALIVE)
    job.end(*ALIVE)
    assert job.verdict.cause.stream == "tf-dispatcher"
    assert job.verdict.cause.reason.endswith("; dnn/algo-2[0] then exited with code 1")


def test_a_group_that_depends_on_the_data_waits_for_all_its_servers():
    dnn = scripts("dnn", "algo-2")
    data = workers("data", "algo-1", feed=0)
    dnn = msgspec.structs.replace(dnn, depends_on=("data",))
    data = msgspec.structs.replace(data, ready=Readiness(timeout=30))
    job = Play(make_plan(data, dnn, tf_data=TfDataPlan(("data",))))
    job.come(*ALIVE)
    job.say("algo-1", Ready(), ServerUp("tf-dispatcher", "2.21.0"))
    assert not job.core.orders("algo-2").start
    job.say("algo-1", ServerUp("tf-worker-0", "2.21.0"))
    assert job.core.orders("algo-2").start
    late = Play(make_plan(data, dnn, tf_data=TfDataPlan(("data",))))
    late.come(*ALIVE)
    late.say("algo-1", Ready(), ServerUp("tf-dispatcher", "2.21.0"))
    late.wait(31, ALIVE)
    late.end(*ALIVE)
    assert "algo-1 has a tf-worker-0 that does not serve (it is starting)" in late.verdict.cause.reason


def test_a_host_whose_script_is_done_is_kept_while_its_worker_serves_the_others():
    plan = make_plan(scripts("dnn", "algo-1", "algo-2"), tf_data=TfDataPlan(("dnn",)))
    job = Play(plan)
    job.come(*ALIVE)
    job.exit("algo-2", "0", 0)
    job.wait(1, ALIVE)
    assert not job.of(HostReleased)
    assert job.core.orders("algo-2").stop is None


def test_feed_and_tf_data_do_not_stand_in_for_each_other():
    job = Play(make_plan(workers("data", "algo-1", feed=2), scripts("dnn", "algo-2")))
    job.come(*ALIVE)
    job.say("algo-1", ServerUp("feed", executors=2))
    assert job.core.orders("algo-2").feed[0].state == "ready"
    assert not job.of(ServerReady)
