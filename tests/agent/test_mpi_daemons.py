"""Who may have a daemon of mpirun started where, and what becomes of it."""

import msgspec
import pytest
from agent_plans import make_plan, ranks, scripts
from test_agent_coordinator import Play

from headrace.agent.control.control_messages import DaemonEnded, DaemonWanted
from headrace.agent.coordinator.mpi_daemons import Daemons, missing_ranks
from headrace.agent.program_specs import ProgramSpec, expected_streams, is_of_mpirun, programs_of
from headrace.instance.launch_plan import MPI, DistributionPlan
from headrace.runs.events import Status


def mpi_plan(*groups, spans=("dnn",), **fields):
    plan = make_plan(*groups, **fields)
    return msgspec.structs.replace(plan, distributions=(DistributionPlan(MPI, spans),))


PLAN = mpi_plan(scripts("data", "algo-1"), ranks("dnn", "algo-2", "algo-3"), completion_groups=("dnn",))
WANTED = DaemonWanted(1, "algo-3", ("orted", "-mca", "ess", "env"))


def test_mpirun_runs_on_the_first_host_of_the_world_and_the_ranks_are_expected_on_all():
    assert programs_of(PLAN, "algo-1") == [ProgramSpec("0")]
    assert programs_of(PLAN, "algo-2") == [ProgramSpec("mpirun")]
    assert programs_of(PLAN, "algo-3") == []
    assert [expected_streams(PLAN, host) for host in ("algo-1", "algo-2", "algo-3")] == [("0",), ("0", "1"), ("2", "3")]


@pytest.mark.parametrize(("stream", "is_its"), [("mpirun", True), ("orted", True), ("prted-2", True), ("3", False)])
def test_what_starts_ranks_is_none(stream, is_its):
    assert is_of_mpirun(stream) is is_its


def test_a_daemon_is_ordered_and_its_end_told():
    daemons = Daemons(PLAN)
    assert daemons.wanted("algo-2", WANTED) == "algo-3"
    (order,) = daemons.orders_of("algo-3")
    assert (order.asker, order.number, order.argv) == ("algo-2", 1, WANTED.argv)
    assert daemons.ended("algo-3", DaemonEnded("algo-2", 1, signal=9)) == "algo-2"
    (end,) = daemons.ends_of("algo-2")
    assert (end.number, end.exit_code, end.signal) == (1, None, 9)


def test_a_request_that_comes_again_changes_nothing():
    daemons = Daemons(PLAN)
    daemons.wanted("algo-2", WANTED)
    daemons.wanted("algo-2", msgspec.structs.replace(WANTED, host="algo-2"))
    assert len(daemons.orders_of("algo-3")) == 1
    assert daemons.orders_of("algo-2") == ()


@pytest.mark.parametrize(
    ("asker", "changes", "reason"),
    [
        ("algo-1", {}, "algo-1 runs no mpirun"),
        ("algo-3", {}, "algo-3 runs no mpirun"),
        ("algo-2", {"host": "algo-1"}, "'algo-1' is no host of this MPI world"),
        ("algo-2", {"host": "elsewhere"}, "'elsewhere' is no host of this MPI world"),
        ("algo-2", {"argv": ("sh", "-c", "id")}, "'sh' is no daemon of Open MPI"),
        ("algo-2", {"argv": ()}, "'nothing' is no daemon of Open MPI"),
    ],
)
def test_only_mpirun_gets_daemons_and_only_in_its_world(asker, changes, reason):
    daemons = Daemons(PLAN)
    assert daemons.wanted(asker, msgspec.structs.replace(WANTED, **changes)) == asker
    assert not any(daemons.orders_of(host.name) for host in PLAN.hosts)
    (end,) = daemons.ends_of(asker)
    assert end.exit_code == 255
    assert end.reason.startswith(reason)


def test_another_host_cannot_say_that_a_daemon_ended():
    daemons = Daemons(PLAN)
    daemons.wanted("algo-2", WANTED)
    daemons.ended("algo-1", DaemonEnded("algo-2", 1, exit_code=0))
    assert daemons.ends_of("algo-2") == ()


def test_with_its_host_a_daemon_is_lost_and_a_later_one_refused():
    daemons = Daemons(PLAN)
    daemons.wanted("algo-2", WANTED)
    assert daemons.lost("algo-3", "silent for 5 s") == {"algo-2"}
    daemons.wanted("algo-2", msgspec.structs.replace(WANTED, number=2))
    assert [end.reason for end in daemons.ends_of("algo-2")] == ["algo-3 is lost: silent for 5 s"] * 2


def started(**fields):
    play = Play(msgspec.structs.replace(PLAN, **fields))
    play.come("algo-1", "algo-2", "algo-3")
    return play


def test_the_coordinator_hands_requests_on():
    play = started()
    play.woken.clear()
    play.say("algo-2", WANTED)
    assert "algo-3" in play.woken
    assert play.core.orders("algo-3").daemons[0].argv == WANTED.argv
    play.say("algo-3", DaemonEnded("algo-2", 1, exit_code=0))
    assert play.core.orders("algo-2").daemon_ends[0].exit_code == 0


def test_a_job_is_complete_with_its_ranks_wherever_mpirun_put_them():
    play = started()
    for host, rank in [("algo-2", "0"), ("algo-3", "1"), ("algo-2", "2")]:
        play.exit(host, rank, 0)
    assert play.core.orders("algo-1").stop is None
    play.exit("algo-3", "3", 0)
    play.end("algo-1", "algo-2", "algo-3")
    assert play.verdict.status is Status.COMPLETED


def test_a_host_whose_ranks_are_done_keeps_its_daemon_until_the_last_rank_of_the_world():
    play = started(completion_groups=("dnn", "data"))
    play.exit("algo-3", "2", 0)
    play.exit("algo-3", "3", 0)
    play.wait(0.2, alive=["algo-1", "algo-2", "algo-3"])
    assert play.core.orders("algo-3").stop is None
    play.exit("algo-2", "0", 0)
    play.exit("algo-2", "1", 0)
    play.wait(0.2, alive=["algo-1", "algo-2", "algo-3"])
    assert play.core.orders("algo-3").stop.leave


def test_of_a_rank_and_mpirun_the_rank_is_the_cause_whoever_is_told_first():
    play = started()
    play.exit("algo-2", "mpirun", 1, lines=["error: a rank failed"])
    play.wait(0.2, alive=["algo-1", "algo-2", "algo-3"])
    play.exit("algo-3", "3", 3)
    play.exit("algo-2", "0", number=15, stopped=True)
    play.wait(0.6, alive=["algo-1", "algo-2", "algo-3"])
    play.end("algo-1", "algo-2", "algo-3")
    assert str(play.verdict.cause) == "dnn/algo-3[3]: exited with code 3"


def test_a_daemon_that_is_killed_comes_before_the_ranks_that_lost_it():
    play = started()
    play.exit("algo-2", "0", 1)
    play.exit("algo-3", "orted", number=9)
    play.wait(0.6, alive=["algo-1", "algo-2", "algo-3"])
    play.end("algo-1", "algo-2", "algo-3")
    assert str(play.verdict.cause) == "dnn/algo-3[orted]: killed by SIGKILL"


def test_mpirun_alone_is_the_cause_with_its_own_error():
    play = started()
    play.exit("algo-2", "mpirun", 127, lines=["hint: install it", "error: mpirun is not installed"])
    play.wait(0.6, alive=["algo-1", "algo-2", "algo-3"])
    play.end("algo-1", "algo-2", "algo-3")
    assert str(play.verdict.cause) == "dnn/algo-2[mpirun]: exited with code 127: mpirun is not installed"


def test_an_mpirun_that_ends_well_without_all_ranks_fails_the_job_after_a_moment():
    play = started()
    for host, rank in [("algo-2", "0"), ("algo-2", "1"), ("algo-3", "2")]:
        play.exit(host, rank, 0)
    play.exit("algo-2", "mpirun", 0)
    play.wait(2.5, alive=["algo-1", "algo-2", "algo-3"])
    assert play.core.orders("algo-1").stop is None
    play.wait(1.5, alive=["algo-1", "algo-2", "algo-3"])
    play.end("algo-1", "algo-2", "algo-3")
    assert play.verdict.status is Status.FAILED
    assert str(play.verdict.cause).endswith("of its ranks these did not run to a good end: 3")


def test_ranks_of_another_group_do_not_count():
    assert missing_ranks(PLAN, "algo-2", {"algo-1": {}}) == [0, 1, 2, 3]
