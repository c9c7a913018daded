"""tf.data.service: which servers run on which host, and on which ports."""

import pytest

from headrace.instance.frameworks import is_tf_data, service_address, tf_data_servers
from headrace.instance.launch_plan import (
    TORCH_DISTRIBUTED,
    DistributionPlan,
    GroupPlan,
    HostPlan,
    LaunchPlan,
    Ports,
    TfDataPlan,
)


def plan(prefix, *named, workers=1, ports=None, **fields):
    groups = (GroupPlan("data", "t", ("algo-1", "algo-2"), entry_point=False), GroupPlan("dnn", "t", ("algo-3",)))
    hosts = tuple(
        HostPlan(f"algo-{n}", group, f"{prefix}.{n}", "/b", "/r") for n, group in ((1, "data"), (2, "data"), (3, "dnn"))
    )
    tf_data = TfDataPlan(named, workers) if named else None
    return LaunchPlan("j", "r", "t.py", groups, hosts, "algo-3", ports=ports or Ports(), tf_data=tf_data, **fields)


def placed(made):
    return [(server.host, server.stream, server.address) for server in tf_data_servers(made)]


def test_the_dispatcher_is_on_the_first_host_of_the_first_named_group_and_workers_on_all():
    assert placed(plan("10.0.0", "data", "dnn")) == [
        ("algo-1", "tf-dispatcher", "10.0.0.1:7072"),
        ("algo-1", "tf-worker-0", "10.0.0.1:7073"),
        ("algo-2", "tf-worker-0", "10.0.0.2:7073"),
        ("algo-3", "tf-worker-0", "10.0.0.3:7073"),
    ]
    assert service_address(plan("10.0.0", "dnn", "data")) == "grpc://10.0.0.3:7072"
    assert [server.stream for server in tf_data_servers(plan("10.0.0", "data", workers=2), "algo-2")] == [
        "tf-worker-0",
        "tf-worker-1",
    ]


def test_hosts_that_share_a_machine_number_their_ports_through():
    assert [address for _, _, address in placed(plan("127.0.1", "data", "dnn", workers=2))] == [
        "127.0.1.1:7072",
        "127.0.1.1:7073",
        "127.0.1.1:7074",
        "127.0.1.2:7075",
        "127.0.1.2:7076",
        "127.0.1.3:7077",
        "127.0.1.3:7078",
    ]


@pytest.mark.parametrize("prefix", ["10.0.0", "127.0.1"])
def test_ports_of_headrace_s_own_are_passed_over(prefix):
    world = (DistributionPlan(TORCH_DISTRIBUTED, ("dnn",)),)
    ports = Ports(control=7073, feed=7075, master=7074, tf_data=7072)
    found = [server.port for server in tf_data_servers(plan(prefix, "data", ports=ports, distributions=world))]
    assert found == ([7072, 7076, 7076] if prefix == "10.0.0" else [7072, 7076, 7077])


def test_a_job_without_it_has_no_server_and_no_address():
    none = plan("10.0.0")
    assert tf_data_servers(none) == ()
    assert service_address(none) == ""


def test_its_streams_are_known_by_their_names():
    assert all(map(is_tf_data, ("tf-dispatcher", "tf-worker-0", "tf-worker-12")))
    assert not any(map(is_tf_data, ("0", "feed", "mpirun", "tf")))
