"""Figures of hosts and groups, and of values, over records that the test writes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from recorded_runs import columns_of

from headrace.agent.metrics.counters import busy_seconds
from headrace.insight.evidence import crowded
from headrace.insight.figures.figure import FORMULAS, Figure, Window
from headrace.insight.figures.host_usage import GroupReport, UseFigures, group_report
from headrace.insight.run_report import value_reports
from headrace.processes.process_table import TICKS
from headrace.runs import GpuUse, HostSecond, Stream, ValueSecond

WINDOW = Window(101.0, 103.0)


def second(t: float, **fields: object) -> HostSecond:
    return HostSecond(t=t, **{"cpu": 0.0, "cores": 2, "rss": 100, "processes": 1, **fields})


def counters(*received: int | None, start: float = 100.0) -> list[HostSecond]:
    """Seconds whose counters grow: sent twice, read three times, written four times as fast as received."""
    return [
        second(start + place, received=n, sent=n and 2 * n, read=n and 3 * n, written=n and 4 * n)
        for place, n in enumerate(received)
    ]


def group(*hosts: list[HostSecond], window: Window | None = WINDOW, silent: int = 0) -> GroupReport:
    names = [f"algo-{number + 1}" for number in range(len(hosts) + silent)]
    streams = {Stream("g", name, "host"): found for name, found in zip(names, hosts, strict=False)}
    return group_report("g", names, columns_of(streams), window)


def test_rates_are_the_growth_of_the_counters_in_the_window_added_over_the_hosts() -> None:
    # 1,000 bytes came before the window, and 5,000 after it
    found = group(counters(0, 1000, 1010, 1100, 6100), counters(7, 7, 8, 9, start=100.5))
    assert found.network_received.value == pytest.approx(100 / 2 + 1 / 1)
    assert found.network_received.window == Window(101.0, 103.0)
    assert found.network_sent.value == pytest.approx(2 * 51)
    assert found.disk_read.value == pytest.approx(3 * 51)
    assert found.disk_written.value == pytest.approx(4 * 51)
    assert found.network_received.unit == found.disk_written.unit == "bytes/s"
    assert found.network_received.spread is None  # only one second is common
    first, second_host = found.by_host
    assert (first.network_received.value, second_host.network_received.value) == (50.0, 1.0)
    assert first.network_received.spread is not None
    assert (first.network_received.spread.low, first.network_received.spread.high) == (18.0, 82.0)
    assert (first.group, first.host, first.cores) == ("g", "algo-1", 2)


def test_counters_that_begin_anew_with_another_attempt_count_what_grew_before_and_behind() -> None:
    counts = ((100, 10.0), (101, 11.0), (102, 12.0), (110, 0.0), (111, 1.0), (112, 2.0))
    found = group(
        [
            second(t, cpu=n, busy=n + t, received=100 * int(n), sent=0, read=int(n), written=10 * int(n))
            for t, n in counts
        ],
        window=Window(100.0, 112.0),
    )
    assert found.cpu.value == pytest.approx(50.0)  # one of two cores, in both attempts
    assert found.others.value == pytest.approx(50.0)
    assert found.network_received.value == pytest.approx(100.0)
    assert (found.disk_read.value, found.disk_written.value) == (pytest.approx(1.0), pytest.approx(10.0))
    assert found.disk_read.spread is not None
    assert found.disk_read.spread.low == 1.0


@pytest.mark.parametrize(
    ("hosts", "window", "note"),
    [
        ([], WINDOW, "no metrics"),
        ([counters(1, 2, 3)], None, "no training window"),
        ([counters(1, 2)], WINDOW, "fewer than two"),
        ([counters(1, 2, 3, 4), counters(None, None, None)], WINDOW, "no network of its own"),
    ],
)
def test_a_rate_that_was_not_measured_has_no_value_and_says_why(hosts, window, note) -> None:
    figure = group(*hosts, window=window).network_received
    assert figure.value is None
    assert note in figure.note


def test_disk_bytes_that_were_not_counted_have_a_reason_of_their_own() -> None:
    assert "not counted" in group(counters(None, None, None)).disk_read.note


def test_memory_is_the_largest_share_that_one_host_used() -> None:
    small = [second(100 + n, rss=900, memory=1000, used=used) for n, used in enumerate((100, 800, 300))]
    large = [second(100 + n, rss=9000, memory=4000, used=used) for n, used in enumerate((1000, 2000, 3000))]
    found = group(small, large)
    assert found.memory.value == 80.0
    assert found.memory.unit == "%"
    assert found.memory.note == ""
    assert found.by_host[1].memory.value == 75.0
    assert found.max_rss.value == 9000


def test_memory_without_a_control_group_is_the_resident_bytes_and_says_so() -> None:
    figure = group([second(100, memory=1000, rss=500), second(101, memory=1000, rss=700)]).memory
    assert figure.value == 70.0
    assert "counted for each" in figure.note
    assert "not known" in group([second(100)]).memory.note


def gpu(index: int, use: float | None, memory: int = 10, power: float | None = None) -> GpuUse:
    return GpuUse(index, "N", use, memory, 40, power)


def test_gpu_figures_are_means_over_the_window_and_the_largest_memory_of_the_run() -> None:
    one = [
        second(100, gpus=(gpu(0, 99.0, 20),)),  # before the window
        second(101, gpus=(gpu(0, 10.0, power=100.0), gpu(1, 50.0, power=200.0))),
        second(102, gpus=(gpu(0, 30.0, power=300.0),)),  # device 1 failed here: that is no idleness
    ]
    two = [second(101, gpus=(gpu(0, 60.0, 30, 50.0),)), second(102, gpus=(gpu(0, 80.0, power=50.0),))]
    found = group(one, two, [second(101)])
    assert found.gpu_use.value == pytest.approx((20 + 50 + 70) / 3)
    assert found.gpu_power.value == pytest.approx(200 + 200 + 50)
    assert found.gpu_power.unit == "W"
    assert found.gpu_memory.value == 75.0
    assert found.by_host[0].gpus == ("0: N", "1: N")
    assert found.by_host[0].gpu_memory.value == 50.0
    assert found.by_host[2].gpu_use.value is None


@pytest.mark.promise("metrics", "what was not measured is absent with a note, never 0")
def test_a_gpu_figure_that_a_device_does_not_tell_is_missing_and_not_zero() -> None:
    found = group([second(101 + n, gpus=(gpu(0, None),)) for n in range(2)])
    for figure in (found.gpu_use, found.gpu_power):
        assert figure.value is None
        assert "do not tell" in figure.note
    assert found.gpu_memory.value == 25.0
    assert "no GPU" in group([second(101)]).gpu_use.note
    early = group([second(100, gpus=(gpu(0, 1.0),))])
    assert "training window" in early.gpu_use.note


def test_a_silent_host_is_named_in_every_figure_of_the_group_and_has_none_of_its_own() -> None:
    found = group([second(101 + n, cpu=n, memory=1000, used=1, read=0, written=0) for n in range(2)], silent=1)
    assert found.cores is None
    for figure in (found.cpu, found.max_rss, found.memory, found.disk_read):
        assert figure.value is not None
        assert "without algo-2" in figure.note
    assert all(figure.value is None and figure.note for figure in figures(found.by_host[1]))


def figures(usage: UseFigures) -> list[Figure]:
    return [value for name in usage.__struct_fields__ if isinstance(value := getattr(usage, name), Figure)]


def test_every_figure_has_a_name_that_is_its_field_and_a_formula() -> None:
    found = group(counters(1, 2, 3, 4))
    for each in (found, *found.by_host):
        names = [name for name in each.__struct_fields__ if isinstance(getattr(each, name), Figure)]
        assert len(names) == 11
        assert [getattr(each, name).name for name in names] == names
        assert set(names) <= FORMULAS.keys()


def value(t: float, stream: str, *values: float, name: str = "loss") -> ValueSecond:
    low, high = min(values), max(values)
    return ValueSecond(
        t=t, name=name, stream=stream, count=len(values), last=values[-1], low=low, high=high, total=sum(values)
    )


def test_a_metric_has_the_figures_of_all_its_programs() -> None:
    found = {
        Stream("g", "algo-1", "values"): [value(10, "0", 5, 1), value(12, "0", 2), value(11, "0", 7, name="lr")],
        Stream("g", "algo-2", "values"): [value(11, "1", 9), value(11.5, "feed", 3)],
    }
    loss, lr, never = value_reports(["loss", "lr", "never"], columns_of(found))
    assert loss.programs == ("g/algo-1[0]", "g/algo-2[1]", "g/algo-2[feed]")
    assert (loss.count.value, loss.min.value, loss.max.value, loss.mean.value) == (5, 1, 9, 4.0)
    assert loss.last.value == 2
    assert loss.last.note == "of g/algo-1[0], the newest of 3 programs"
    assert loss.mean.window == Window(10, 12)
    assert loss.mean.spread is not None
    assert (lr.last.value, lr.last.note) == (7, "")
    assert never.programs == ()
    assert never.count.value == 0
    for figure in (never.last, never.min, never.max, never.mean):
        assert figure.value is None
        assert "no line" in figure.note
    every = [each for name in loss.__struct_fields__ if isinstance(each := getattr(loss, name), Figure)]
    assert {figure.name for figure in every} <= FORMULAS.keys()
    assert msgspec.json.decode(msgspec.json.encode(loss))["last"]["unit"] == ""


def test_a_metric_that_was_found_but_is_not_in_the_plan_is_shown_all_the_same() -> None:
    [found] = value_reports([], columns_of({Stream("g", "algo-1", "values"): [value(1, "0", 5)]}))
    assert (found.name, found.last.value) == ("loss", 5)


def test_cpu_of_others_is_what_the_cores_did_beyond_the_run_s_own_hosts() -> None:
    own = [second(100 + n, cpu=0.5 * n, busy=7000 + 1.9 * n) for n in range(5)]  # two cores, 1.4 of them to others
    found = group(own, [second(100 + n, cpu=0.1 * n, busy=0.1 * n) for n in range(5)])
    assert found.by_host[0].others.value == pytest.approx(70.0)
    assert found.others.value == pytest.approx(35.0)
    streams = {Stream("g", "algo-1", "host"): own}
    beside = group_report(
        "g", ["algo-1"], columns_of(streams), WINDOW, {"algo-1": 1.3}
    )  # 1.3 of them are another host's of the run
    assert beside.others.value == pytest.approx(5.0)
    assert "do not tell" in group(counters(1, 2, 3, 4)).others.note
    assert crowded([found]) == (
        "the machine was busy with something else: other programs had 70 % of the cores of g/algo-1, its own 25 %"
    )
    assert crowded([beside]) == ""
    assert crowded([group([second(100 + n, cpu=0.1 * n, busy=1.0 * n) for n in range(5)])]) == "", "a core was free"


def test_the_kernel_s_table_gives_the_seconds_of_some_cpus_with_what_a_hypervisor_took(tmp_path: Path) -> None:
    table = tmp_path / "stat"
    table.write_text("cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 10 1 5000 70 2 3 84 50 0\ncpu1 1 1 1 1 1 1 1 1 0 0\nintr 1\n")
    assert busy_seconds({0}, str(table)) == pytest.approx(200 / TICKS)
    assert busy_seconds({0, 1}, str(table)) == pytest.approx(206 / TICKS)
    assert busy_seconds({0, 7}, str(table)) is None, "a CPU that it does not name"
