"""What runs on a host, and where the data workers are."""

import re

import msgspec
from agent_plans import Ports, make_plan, ranks, scripts, workers

from headrace.agent.control.control_messages import Orders
from headrace.agent.host.data_servers import feed_hosts_for
from headrace.agent.program_specs import (
    ProgramSpec,
    expected_streams,
    feed_argv,
    feed_socket,
    goes_on_without,
    programs_of,
)
from headrace.instance.launch_plan import MULTI_WORKER_MIRRORED, TORCH_DISTRIBUTED, DistributionPlan, Elastic, FeedHost

SECRET = b"secret"


def test_a_plain_group_has_one_script():
    assert programs_of(make_plan(scripts("dnn", "algo-1")), "algo-1") == [ProgramSpec("0")]


def test_ranks_are_numbered_over_hosts():
    plan = make_plan(ranks("dnn", "algo-1", "algo-2"), world=("dnn",))
    assert expected_streams(plan, "algo-1") == ("0", "1")
    assert programs_of(plan, "algo-2") == [ProgramSpec("2", 0), ProgramSpec("3", 1)]


def test_a_group_outside_of_the_distribution_has_a_script():
    plan = make_plan(scripts("side", "algo-1"), ranks("dnn", "algo-2"), world=("dnn",))
    assert programs_of(plan, "algo-1") == [ProgramSpec("0")]


def test_a_data_host_has_a_feed_server_and_nothing_else():
    plan = make_plan(scripts("dnn", "algo-1"), workers("data", "algo-2"))
    assert [spec.stream for spec in programs_of(plan, "algo-2")] == ["feed"]
    assert expected_streams(plan, "algo-2") == ()


def test_a_host_with_both_starts_the_feed_first_and_nices_it():
    plan = make_plan(ranks("dnn", "algo-1", feed=3), world=("dnn",))
    assert [spec.stream for spec in programs_of(plan, "algo-1")] == ["feed", "0", "1"]
    argv = feed_argv(plan, "algo-1", SECRET, 9)
    options = dict(zip(argv[2::2], argv[3::2], strict=True))
    assert options["--bind"] == "127.78.1.1:7070"
    assert options["--executors"] == "3"
    assert options["--nice"] != "0"
    assert options["--status-fd"] == "9"


def test_the_name_of_the_socket_fits_into_its_address():
    plan = make_plan(scripts("dnn", "algo-1"))
    name = feed_socket(plan, "algo-1", SECRET)
    assert re.fullmatch("@headrace/job-1/algo-1/[0-9a-f]{20}", name)
    assert name != feed_socket(plan, "algo-1", b"other"), "nobody else knows it before it is taken"
    long = msgspec.structs.replace(plan, run_id="x" * 200)
    assert len(feed_socket(long, "algo-1", SECRET)) <= 108
    assert feed_socket(long, "algo-1", SECRET) != feed_socket(long, "algo-2", SECRET)


def test_a_host_reaches_its_own_workers_by_socket_and_others_by_tcp():
    plan = make_plan(scripts("dnn", "algo-1", "algo-2", feed=1))
    feed = tuple(FeedHost(f"algo-{n}", "dnn", f"tcp://127.78.1.{n}:7070", 1, "ready") for n in (1, 2))
    written = feed_hosts_for(plan, "algo-2", Orders(feed_generation=4, feed=feed), SECRET)
    assert written.generation == 4
    assert [host.address for host in written.hosts] == [
        "tcp://127.78.1.1:7070",
        f"unix:{feed_socket(plan, 'algo-2', SECRET)}",
    ]


def elastic(*groups, minimum=1, **fields):
    world = DistributionPlan(TORCH_DISTRIBUTED, tuple(group.name for group in groups), elastic=Elastic(minimum, 3))
    return make_plan(*groups, distributions=(world,), **fields)


def test_an_elastic_world_has_torchrun_on_every_host_instead_of_ranks():
    plan = elastic(ranks("dnn", "algo-1", "algo-2"))
    assert programs_of(plan, "algo-2") == [ProgramSpec("torchrun")]
    assert expected_streams(plan, "algo-1") == ("torchrun",)


def test_two_worlds_number_their_ranks_alone_and_meet_at_ports_of_their_own():
    plan = make_plan(
        ranks("a", "algo-1"),
        ranks("b", "algo-2", "algo-3", count=1),
        scripts("side", "algo-4"),
        distributions=(DistributionPlan(TORCH_DISTRIBUTED, ("a",)), DistributionPlan(TORCH_DISTRIBUTED, ("b",))),
        ports=Ports(feed=7778),
    )
    assert [expected_streams(plan, f"algo-{n}") for n in (1, 2, 3, 4)] == [("0", "1"), ("0",), ("1",), ("0",)]
    assert [plan.master_port_of(world) for world in plan.distributions] == [7777, 7779]


def test_a_worker_of_tensorflow_is_one_program_a_host_named_by_its_index():
    world = DistributionPlan(MULTI_WORKER_MIRRORED, ("dnn",))
    plan = make_plan(scripts("side", "algo-1"), ranks("dnn", "algo-2", "algo-3", count=1), distributions=(world,))
    assert programs_of(plan, "algo-3") == [ProgramSpec("1", 0)]


def test_an_elastic_world_goes_on_without_a_host_while_it_has_enough_and_its_first():
    plan = elastic(ranks("a", "algo-1", "algo-2"), ranks("b", "algo-3"), minimum=2)
    assert goes_on_without(plan, "algo-3", ())
    assert not goes_on_without(plan, "algo-3", {"algo-2"})
    assert not goes_on_without(plan, "algo-1", ())  # it has the rendezvous
    assert not goes_on_without(make_plan(ranks("a", "algo-1", "algo-2"), world=("a",)), "algo-2", ())
