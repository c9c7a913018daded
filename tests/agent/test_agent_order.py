"""The coordinator on readiness, early release and stalls, step by step, and how an agent sees a port."""

from __future__ import annotations

import socket
import struct

import msgspec
import pytest
from agent_plans import make_plan, ranks, scripts, workers
from test_agent_coordinator import Play, started

from headrace.agent.control.control_messages import Heartbeat, HostEnded, ProgramsEnded, Ready, Report, ServerUp
from headrace.agent.coordinator.budget_limits import Used
from headrace.agent.coordinator.host_state import is_waited_for
from headrace.agent.coordinator.state_machine import Phase
from headrace.agent.host.programs import listens
from headrace.instance.launch_plan import Readiness
from headrace.runs.events import HostLost, HostReleased, Status


def waiting(group, *names):
    return msgspec.structs.replace(group, depends_on=names)


def with_port(group, port=6000, timeout=30.0):
    return msgspec.structs.replace(group, ready=Readiness(port, timeout))


def beat(play, seconds, *hosts, **quiet):
    """Time passes; every host is alive, and says for how long its program 0 was quiet."""
    for _ in range(round(seconds * 10)):
        play.now = round(play.now + 0.1, 3)
        for host in hosts:
            quiet[host] = quiet.get(host, 0.0) + 0.1
            play.take(play.core.report(host, Report(0, Heartbeat({"0": quiet[host]})), play.now))
        play.take(play.core.tick(play.now))


def told_to_start(play, *hosts):
    return [host for host in hosts if play.core.orders(host).start]


# --- order -----------------------------------------------------------------------------------------------------------


def test_a_group_starts_when_every_host_that_it_waits_for_is_ready():
    play = started(waiting(scripts("dnn", "algo-1"), "data"), with_port(scripts("data", "algo-2", "algo-3")))
    hosts = ("algo-1", "algo-2", "algo-3")
    assert told_to_start(play, *hosts) == ["algo-2", "algo-3"]
    play.say("algo-2", Ready())
    assert told_to_start(play, *hosts) == ["algo-2", "algo-3"]
    play.woken.clear()
    play.say("algo-3", Ready())
    assert told_to_start(play, *hosts) == list(hosts)
    assert "algo-1" in play.woken


def test_a_group_with_data_workers_is_ready_when_they_serve():
    play = started(waiting(scripts("dnn", "algo-1"), "data"), workers("data", "algo-2"))
    play.say("algo-2", Ready())
    assert told_to_start(play, "algo-1", "algo-2") == ["algo-2"]
    play.say("algo-2", ServerUp("feed", executors=2))
    assert told_to_start(play, "algo-1", "algo-2") == ["algo-1", "algo-2"]


def test_groups_wait_in_a_chain():
    play = started(waiting(scripts("c", "algo-1"), "b"), waiting(scripts("b", "algo-2"), "a"), scripts("a", "algo-3"))
    assert told_to_start(play, "algo-1", "algo-2", "algo-3") == ["algo-3"]
    play.say("algo-3", Ready())
    assert told_to_start(play, "algo-1", "algo-2", "algo-3") == ["algo-2", "algo-3"]
    play.say("algo-2", Ready())
    assert told_to_start(play, "algo-1") == ["algo-1"]


def test_a_group_that_is_not_ready_in_time_fails_the_job_and_is_named_with_its_port():
    play = started(
        waiting(scripts("dnn", "algo-1"), "data_group"), with_port(scripts("data_group", "algo-2", "algo-3"))
    )
    play.say("algo-3", Ready())
    play.wait(29.5, alive=["algo-1", "algo-2", "algo-3"])
    assert play.core.phase is Phase.RUNNING
    play.wait(1, alive=["algo-1", "algo-2", "algo-3"])
    play.end("algo-1", "algo-2", "algo-3")
    assert play.verdict.status is Status.FAILED
    cause = play.verdict.cause
    assert (cause.group, cause.host, cause.infrastructure) == ("data_group", "algo-2", False)
    assert cause.reason == ("waited 30 s for data_group to be ready: algo-2 does not accept connections on port 6000")


def test_the_time_to_be_ready_runs_from_the_groups_own_start():
    play = started(
        waiting(scripts("c", "algo-1"), "b"),
        with_port(waiting(scripts("b", "algo-2"), "a"), timeout=10),
        with_port(scripts("a", "algo-3"), timeout=60),
    )
    play.wait(20, alive=["algo-1", "algo-2", "algo-3"])
    play.say("algo-3", Ready())
    play.wait(9, alive=["algo-1", "algo-2", "algo-3"])
    assert play.core.phase is Phase.RUNNING
    play.wait(2, alive=["algo-1", "algo-2", "algo-3"])
    play.end("algo-1", "algo-2", "algo-3")
    assert "waited 10 s for b" in play.verdict.cause.reason


def test_a_group_that_ends_without_ever_being_ready_is_not_waited_for():
    play = started(waiting(scripts("dnn", "algo-1"), "data"), with_port(scripts("data", "algo-2")))
    play.exit("algo-2", "0", 0)
    assert play.core.phase is Phase.STOPPING
    play.end("algo-1", "algo-2")
    assert play.verdict.cause.reason == (
        "dnn waits in vain for data to be ready: algo-2 ended and does not accept connections on port 6000"
    )


def test_a_lost_data_host_is_not_waited_for():
    play = started(waiting(scripts("dnn", "algo-1"), "data"), workers("data", "algo-2", "algo-3"))
    play.take(play.core.host_gone("algo-2", "agent killed by SIGKILL", play.now))
    play.wait(1, alive=["algo-1", "algo-3"])
    play.end("algo-1", "algo-3")
    assert play.verdict.status is Status.FAILED
    assert "algo-2 was lost" in play.verdict.cause.reason


def test_a_program_that_fails_while_others_wait_for_it_is_the_cause():
    play = started(waiting(scripts("dnn", "algo-1"), "data"), with_port(scripts("data", "algo-2")))
    play.exit("algo-2", "0", 3)
    play.wait(1, alive=["algo-1", "algo-2"])
    play.end("algo-1", "algo-2")
    assert str(play.verdict.cause) == "data/algo-2[0]: exited with code 3"


def test_only_groups_that_are_waited_for_say_that_they_are_ready():
    plan = make_plan(waiting(scripts("dnn", "algo-1"), "data"), scripts("data", "algo-2"))
    assert is_waited_for(plan, "data")
    assert not is_waited_for(plan, "dnn")


@pytest.mark.parametrize(
    ("family", "address", "asked", "seen"),
    [
        (socket.AF_INET, "127.78.9.1", "127.78.9.1", True),
        (socket.AF_INET, "127.78.9.1", "127.78.9.2", False),
        (socket.AF_INET, "0.0.0.0", "127.78.9.1", True),
        (socket.AF_INET6, "::", "127.78.9.1", True),
        (socket.AF_INET6, "::1", "127.78.9.1", False),
    ],
)
def test_a_port_is_seen_to_be_listened_on_without_a_connection(family, address, asked, seen):
    with socket.socket(family) as server:
        server.bind((address, 0))
        port = server.getsockname()[1]
        assert not listens(asked, port)
        server.listen(1)
        assert listens(asked, port) is seen
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_connection_that_is_not_listening_does_not_count():
    with socket.create_server(("127.78.9.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        mine = client.getsockname()
        assert not listens(mine[0], mine[1])
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()


# --- early release ---------------------------------------------------------------------------------------------------


def test_a_host_whose_programs_are_done_is_released_while_the_job_goes_on():
    play = started(scripts("dnn", "algo-1"), scripts("side", "algo-2", "algo-3"), completion_groups=("dnn",))
    play.exit("algo-2", "0", 0)
    order = play.core.orders("algo-2").stop
    assert (order.feed, order.leave) == (True, True)
    assert play.core.orders("algo-3").stop is None
    play.say("algo-2", ProgramsEnded(), HostEnded())
    assert play.of(HostReleased) == [HostReleased(t=play.now, group="side", host="algo-2")]
    play.take(play.core.disconnected("algo-2", play.now))
    play.take(play.core.host_gone("algo-2", "agent exited with code 0", play.now))
    play.wait(20, alive=["algo-1", "algo-3"])
    assert play.core.phase is Phase.RUNNING
    assert play.of(HostLost) == []
    play.exit("algo-1", "0", 0)
    play.end("algo-1", "algo-3")
    assert play.verdict.status is Status.COMPLETED


def test_a_released_host_does_not_hide_a_later_failure():
    play = started(scripts("dnn", "algo-1"), scripts("side", "algo-2"), completion_groups=("dnn",))
    play.exit("algo-2", "0", 0)
    play.say("algo-2", ProgramsEnded(), HostEnded())
    play.exit("algo-1", "0", 4)
    play.wait(1, alive=["algo-1"])
    play.end("algo-1")
    assert str(play.verdict.cause) == "dnn/algo-1[0]: exited with code 4"


def test_the_leader_and_hosts_that_serve_data_are_not_released():
    play = started(
        ranks("dnn", "algo-1", "algo-2", count=1),
        scripts("data", "algo-3", feed=2),
        world=("dnn",),
    )
    play.say("algo-3", ServerUp("feed", executors=2))
    play.exit("algo-1", "0", 0)
    play.exit("algo-3", "0", 0)
    assert [play.core.orders(host).stop for host in ("algo-1", "algo-2", "algo-3")] == [None] * 3
    play.exit("algo-2", "1", 0)
    assert all(play.core.orders(host).stop for host in ("algo-1", "algo-2", "algo-3"))


def test_a_host_that_is_killed_while_it_is_released_is_no_failure():
    play = started(scripts("dnn", "algo-1"), scripts("side", "algo-2"), completion_groups=("dnn",))
    play.exit("algo-2", "0", 0)
    play.take(play.core.host_gone("algo-2", "agent killed by SIGKILL", play.now))
    play.wait(2, alive=["algo-1"])
    assert play.core.phase is Phase.RUNNING


# --- stalls ----------------------------------------------------------------------------------------------------------


def test_a_job_without_any_sign_of_life_fails_and_names_the_quietest():
    play = started(scripts("dnn", "algo-1", "algo-2"), stall_after=30.0)
    beat(play, 29, "algo-1", "algo-2", **{"algo-2": 50.0})
    assert play.core.phase is Phase.RUNNING
    beat(play, 2, "algo-1", "algo-2", **{"algo-1": 29.0, "algo-2": 79.0})
    play.end("algo-1", "algo-2")
    cause = play.verdict.cause
    assert play.verdict.status is Status.FAILED
    assert cause.reason.startswith("stalled: no output or metrics for 30 s; the quietest: dnn/algo-")
    assert "dnn/algo-2[0] (30 s)" in cause.reason
    assert not cause.infrastructure


def test_one_rank_that_writes_is_enough():
    play = started(scripts("dnn", "algo-1", "algo-2"), stall_after=5.0)
    for _ in range(30):
        beat(play, 1, "algo-1", "algo-2", **{"algo-1": 0.0, "algo-2": 100.0})
    assert play.core.phase is Phase.RUNNING


def test_a_stall_is_of_the_completion_groups_only_and_not_without_a_limit():
    noisy = started(scripts("dnn", "algo-1"), scripts("side", "algo-2"), completion_groups=("dnn",), stall_after=5.0)
    beat(noisy, 6, "algo-1", "algo-2", **{"algo-1": 3.0, "algo-2": 0.0})
    assert noisy.core.phase is Phase.STOPPING
    patient = started(scripts("dnn", "algo-1"))
    beat(patient, 600, "algo-1")
    assert patient.core.phase is Phase.RUNNING


def test_a_group_that_waits_to_start_is_not_stalled():
    play = started(waiting(scripts("dnn", "algo-1"), "data"), with_port(scripts("data", "algo-2")), stall_after=5.0)
    beat(play, 20, "algo-1", "algo-2")
    assert play.core.phase is Phase.RUNNING
    play.say("algo-2", Ready())
    beat(play, 6, "algo-1", "algo-2", **{"algo-2": 0.0})
    assert play.core.phase is Phase.STOPPING


def test_seconds_that_were_spent_before_count_for_max_run():
    from headrace.agent.coordinator.state_machine import Coordinator

    play = Play(make_plan(scripts("dnn", "algo-1"), max_run=10.0))
    play.core = Coordinator(play.core._plan, play.now, used=Used(seconds=8.0))
    play.come("algo-1")
    play.wait(1.5, alive=["algo-1"])
    assert play.core.phase is Phase.RUNNING
    play.wait(1, alive=["algo-1"])
    assert play.core.phase is Phase.STOPPING
