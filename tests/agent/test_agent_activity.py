"""When a host last worked: CPU, GPU, and bytes that its servers sent. Sockets are real."""

import socket

import pytest

from headrace.agent.metrics.counters import Activity
from headrace.agent.tf_data_server import BytesSent
from headrace.runs.metric_records import GpuUse, HostSecond


def second(t, cpu, gpu=None):
    gpus = (GpuUse(index=0, name="g", use=gpu, memory=0, memory_total=1),)
    return HostSecond(t=t, cpu=cpu, cores=4, rss=1, processes=1, gpus=gpus)


@pytest.mark.parametrize(
    ("cpu", "gpu", "works"), [(0.03, None, False), (0.03, 0.0, False), (0.11, None, True), (0.03, 4.0, True)]
)
def test_a_tenth_of_a_core_or_any_use_of_a_gpu_is_work(cpu, gpu, works):
    now = [0.0]
    activity = Activity(lambda: now[0])
    activity.used(second(0, 7.0))
    now[0] = 50.0
    activity.used(second(1, 7.0 + cpu, gpu))
    assert activity.idle() == (0.0 if works else 50.0)
    assert activity.unsent() == 50.0


def test_what_the_agent_itself_uses_is_no_work():
    now, own = [0.0], [3.0]
    activity = Activity(lambda: now[0], lambda: own[0])
    activity.used(second(0, 7.0))
    now[0], own[0] = 50.0, 3.5
    activity.used(second(1, 7.55))
    assert activity.idle() == 50.0
    activity.used(second(2, 7.66))
    assert activity.idle() == 0.0


def test_what_a_server_sends_counts_for_each_and_from_0_after_a_restart():
    now = [0.0]
    activity = Activity(lambda: now[0])
    seen = []
    for now[0], stream, total in [(1, "a", 5), (2, "a", 5), (3, "b", 5), (4, "a", 0), (5, "a", 1)]:
        activity.sent(stream, total)
        seen.append(activity.unsent())
    assert seen == [0, 1, 0, 1, 0]


def test_bytes_are_counted_that_left_from_a_port_of_this_process_and_no_others():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        sent = BytesSent(server.getsockname()[1])
        assert sent.look() == 0
        pairs = []
        for each in (server, other):
            client = socket.create_connection(each.getsockname())
            pairs.append((client, each.accept()[0]))
        for client, accepted in pairs:
            client.sendall(b"ask" * 100)
            accepted.sendall(b"x" * 1000)
            assert client.recv(1000, socket.MSG_WAITALL)
        assert sent.look() == 1000
        for client, accepted in pairs:
            client.close()
            accepted.close()
        assert sent.look() == 1000  # what a closed connection had sent stays counted
