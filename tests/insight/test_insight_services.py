"""Figures of the servers of tf.data.service."""

import msgspec
from recorded_runs import columns_of

from headrace.insight.figures.loaders import server_reports
from headrace.runs import Stream
from headrace.runs.metric_records import ServiceSecond

WORKER = Stream("data", "algo-1", "tf-worker-0")


def second(t, cpu, restarts=0, rss=100):
    return ServiceSecond(t=t, stream=WORKER.name, role="worker", cpu=cpu, rss=rss, restarts=restarts)


def test_cpu_is_counted_within_each_process_and_not_between_a_death_and_a_start():
    seconds = [second(0, 4), second(1, 5, rss=300), second(2, 7), second(10, 3, 1), second(12, 4, 1)]
    (one,) = server_reports(columns_of({WORKER: seconds}))
    assert (one.group, one.host, one.stream, one.role, one.restarts) == ("data", "algo-1", "tf-worker-0", "worker", 1)
    assert one.server_cpu.value == 100 * (3 + 1) / (2 + 2)
    assert one.server_cpu.unit == "%"
    assert (one.server_rss.value, one.server_rss.unit) == (300, "bytes")
    assert (one.server_cpu.window.start, one.server_cpu.window.end) == (0, 12)


def test_one_record_is_no_rate():
    (one,) = server_reports(columns_of({WORKER: [second(0, 4)]}))
    assert one.server_cpu.value is None
    assert "two records" in one.server_cpu.note


def test_a_run_without_servers_has_no_report_of_them():
    assert server_reports(columns_of({})) == server_reports(columns_of({WORKER: []})) == ()


def test_what_a_worker_sent_is_counted_within_each_process_and_a_dispatcher_sends_none():
    told = [(0, None, 0), (1, 100, 0), (3, 500, 0), (4, None, 1), (5, 0, 1), (6, 40, 1)]
    seconds = [msgspec.structs.replace(second(t, t, restarts), sent=sent) for t, sent, restarts in told]
    (one,) = server_reports(columns_of({WORKER: seconds}))
    assert (one.server_sent.value, one.server_sent.unit) == ((400 + 40) / 3, "bytes/s")
    (old,) = server_reports(columns_of({WORKER: [second(0, 1), second(1, 2)]}))
    assert old.server_sent.value is None
    assert "was not counted" in old.server_sent.note
    dispatcher = [msgspec.structs.replace(each, role="dispatcher") for each in seconds]
    (other,) = server_reports(columns_of({WORKER: dispatcher}))
    assert other.server_sent.note == "a dispatcher sends no data"
