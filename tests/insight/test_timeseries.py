"""Down-sampling, charts and lanes: values in, values out."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.insight.charts import (
    MOST_POINTS,
    Grid,
    Metrics,
    extremes,
    metrics,
    present,
    ratio,
    sums,
    width_for,
)
from headrace.insight.figures.columns import Columns
from headrace.insight.timeline import timeline
from headrace.runs import GpuUse, HostSecond, LoaderSecond, Metric, Status, Stream, ValueSecond, WorkerSecond, state_of
from headrace.runs.describe import GroupLine
from headrace.runs.events import (
    AttemptStarted,
    DataWorkerLost,
    Event,
    HostLost,
    HostRegistered,
    HostReleased,
    HostStarted,
    JobStopping,
    ProgramExited,
    ProgramStarted,
    RunFinished,
)
from headrace.runs.metric_records import ServiceSecond
from loader_seconds import loader_second

T = 1000.0
RANKS = [Stream("dnn", "algo-1", "0"), Stream("dnn", "algo-2", "1")]


def loader(t: float, steps: int = 10, wait: float = 0.2, step: float = 1.0, **more: float) -> LoaderSecond:
    given = {"steps": steps, "samples": steps * 8, "wait": wait, "step": step, "bytes": steps * 1000}
    return loader_second(t, **{**given, "step_min": 0.05, "step_max": 0.3, **more})


def charts_of(found: list[tuple[Stream, Metric]], start: float = T, end: float = T + 9, points: int = 100) -> Metrics:
    columns = Columns()
    columns.take(found)
    return metrics("r", columns, Grid.over(start, end, points), end)


def line_of(found: Metrics, chart: str, name: str) -> list[float | None]:
    return next(line.values for each in found.charts if each.name == chart for line in each.lines if line.name == name)


@given(st.floats(0, 1e9), st.floats(0, 1e7), st.integers(1, 5000))
def test_a_grid_covers_its_stretch_with_few_buckets(start: float, seconds: float, points: int) -> None:
    grid = Grid.over(start, start + seconds, points)
    assert grid.count <= min(points + 1, MOST_POINTS)
    assert grid.start <= start
    assert grid.start + grid.count * grid.width >= start + seconds - 1e-3


@given(st.floats(0, 2e9), st.floats(0, 1e7), st.integers(1, 2000))
def test_a_fitted_grid_begins_and_ends_with_its_stretch(start: float, seconds: float, points: int) -> None:
    end = start + seconds
    grid = Grid.fitted(start, end, points)
    assert grid.width >= 1
    assert grid.index(np.array([start, end])).tolist() == [0, grid.count - 1]
    assert grid.count <= points
    if seconds > points:
        assert math.isclose(grid.count * grid.width, seconds, rel_tol=1e-6)


def test_widths_are_round() -> None:
    assert [width_for(seconds, 100) for seconds in (0, 100, 101, 5900, 1e6)] == [1, 1, 2, 60, 14400]


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(-1e6, 1e6)), max_size=60), st.integers(1, 60))
def test_nothing_is_lost_by_looking_from_afar(rows: list[tuple[float, float]], points: int) -> None:
    t, values = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    grid = Grid.over(0, 500, points)
    assert math.isclose(sums(grid, t, values).sum(), values.sum(), abs_tol=1e-3)
    low, high = extremes(grid, t, values, values)
    if rows:
        assert np.nanmin(low) == values.min()
        assert np.nanmax(high) == values.max()
    assert np.isnan(low[sums(grid, t, np.ones_like(t)) == 0]).all()


def test_a_bucket_without_rows_has_no_value_and_rows_outside_do_not_count() -> None:
    grid = Grid(0, 1, 3)
    t = np.array([-1.0, 0.5, 2.5, 3.0])
    shares = ratio(grid, t, np.array([9.0, 1.0, 3.0, 9.0]), np.array([1.0, 2.0, 2.0, 1.0]))
    assert shares[[0, 2]].tolist() == [0.5, 1.5]
    assert np.isnan(shares[1])


def test_a_stream_that_writes_every_second_is_present_between_two_rows() -> None:
    grid = Grid(0, 1, 6)
    assert present(grid, [np.array([0.1, 2.05])]).tolist() == [1, 1, 1, 1, 0, 0]
    assert present(Grid(0, 60, 3), [np.array([1.0])]).tolist() == [1, 0, 0]


def test_step_time_data_wait_and_rates_are_those_of_the_report() -> None:
    rows = [(rank, loader(T + second + 0.5)) for rank in RANKS for second in range(10)]
    found = charts_of(rows)
    assert found.records == 20
    assert line_of(found, "step_time", "train") == [100.0] * 10
    assert line_of(found, "step_shares", "data wait") == [20.0] * 10
    assert line_of(found, "samples_per_second", "train") == [160.0] * 10
    assert line_of(found, "bytes_per_second", "into loader train") == [20_000.0] * 10
    step_time = next(chart for chart in found.charts if chart.name == "step_time").lines[0]
    assert step_time.low is not None
    assert step_time.high is not None
    assert (step_time.low[3], step_time.high[3]) == (50.0, 300.0)
    assert "queue" not in {chart.name for chart in found.charts}
    assert any(note.startswith("queue depth") for note in found.notes)


def test_samples_that_were_not_counted_are_no_rate_of_0() -> None:
    found = charts_of([(RANKS[0], msgspec.structs.replace(loader(T + n + 0.5), samples=0)) for n in range(10)])
    assert "samples_per_second" not in {chart.name for chart in found.charts}
    assert any(note.startswith("samples/s: the loader's batches do not tell") for note in found.notes)


def test_a_step_that_is_long_shows_as_long_and_a_peak_survives_a_wide_bucket() -> None:
    rows = [(RANKS[0], loader(T + second, step_max=9.0 if second == 400 else 0.3)) for second in range(1000)]
    found = charts_of(rows, end=T + 1000, points=10)
    assert found.width == 120
    high = next(chart for chart in found.charts if chart.name == "step_time").lines[0].high
    assert high is not None
    assert max(value for value in high if value is not None) == 9000


def test_h2d_compute_and_queue_are_shown_where_they_were_measured() -> None:
    rows = [(RANKS[0], loader(T + 0.5, h2d=0.1, compute=0.7, queue=4.0)), (RANKS[0], loader(T + 1.5))]
    found = charts_of(rows)
    assert line_of(found, "step_shares", "host to device")[:2] == [10.0, None]
    assert line_of(found, "step_shares", "compute")[:2] == [70.0, 80.0]  # what was not measured is the rest of the step
    assert line_of(found, "queue", "train")[:2] == [4.0, None]


def host(t: float, cpu: float, **more: int | tuple[GpuUse, ...]) -> HostSecond:
    return HostSecond(t=t, cpu=cpu, cores=4, rss=1 << 30, processes=1, **more)  # type: ignore[arg-type]


def test_cpu_is_a_share_of_the_group_s_own_cores_and_a_counter_that_begins_anew_is_left_out() -> None:
    stream = Stream("data", "algo-1", "host")
    rows = [
        (stream, host(T + 0.5, 10)),
        (stream, host(T + 1.5, 12)),
        (stream, host(T + 2.5, 0)),
        (stream, host(T + 3.5, 4)),
    ]
    found = charts_of(rows)
    assert line_of(found, "cpu", "data")[:5] == [None, 50.0, None, 100.0, None]
    assert line_of(found, "memory", "data")[:4] == [float(f"{1 << 30:.6g}")] * 4


def test_gpus_network_and_disk_are_added_over_the_hosts_of_a_group() -> None:
    rows: list[tuple[Stream, Metric]] = []
    for name in ("algo-1", "algo-2"):
        for second in range(4):
            gpus = (GpuUse(0, "A", 80.0, 1000, 2000, 50.0), GpuUse(1, "A", 40.0, 1000, 2000, 50.0))
            more = {"received": 500 * second, "sent": 0, "read": 7 * second, "written": 0, "gpus": gpus}
            rows.append((Stream("dnn", name, "host"), host(T + second + 0.5, second, **more)))
    found = charts_of(rows)
    assert line_of(found, "gpu", "dnn")[1] == 60.0
    assert line_of(found, "gpu_memory", "dnn")[1] == 4000
    assert line_of(found, "gpu_power", "dnn")[1] == 200
    assert line_of(found, "bytes_per_second", "dnn received")[1] == 1000
    assert line_of(found, "disk", "dnn read")[1] == 14


def test_a_host_that_does_not_tell_something_is_not_counted_in_a_sum_over_hosts() -> None:
    rows: list[tuple[Stream, Metric]] = []
    for second in range(4):
        gpus = (GpuUse(0, "A", 80.0, 1000, 2000, 50.0),)
        told = host(T + second + 0.5, second, received=500 * second, gpus=gpus)
        rows += [
            (Stream("dnn", "algo-1", "host"), told),
            (Stream("dnn", "algo-2", "host"), host(T + second + 0.5, second)),
        ]
    found = charts_of(rows)
    assert line_of(found, "gpu_memory", "dnn")[1] == 1000
    assert line_of(found, "gpu_power", "dnn")[1] == 50
    assert line_of(found, "bytes_per_second", "dnn received")[1] == 500
    assert line_of(found, "memory", "dnn")[1] == float(f"{2 << 30:.6g}")


def test_a_gpu_that_was_not_read_for_a_second_is_not_absent_and_a_counter_is_not_for_longer() -> None:
    def second(n: int) -> HostSecond:
        power = [None if n == 2 else 100.0, 50.0]
        gpus = tuple(GpuUse(i, "A10G", 80.0, 1 << 30, 4 << 30, power=watts) for i, watts in enumerate(power))
        read = None if n == 2 else 1000 * n
        return HostSecond(t=T + n, cpu=float(n), cores=2, rss=1, processes=1, read=read, written=0, gpus=gpus)

    found = charts_of([(Stream("dnn", "algo-1", "host"), second(n)) for n in range(5)], end=T + 4)
    assert line_of(found, "gpu_power", "dnn") == [150.0, 150.0, 100.0, 150.0, 150.0]  # of two, as the one that was read
    assert line_of(found, "disk", "dnn read") == [None, 1000.0, None, 1000.0, 1000.0]  # 2,000 bytes in two seconds


def test_workers_and_values() -> None:
    feed, program = Stream("data", "algo-1", "feed"), Stream("dnn", "algo-2", "agent")
    rows: list[tuple[Stream, Metric]] = [
        (
            feed,
            WorkerSecond(
                t=T + 0.5, seconds=2.0, executors=4, produce=6.0, blocked=1.0, idle=1.0, cpu=6.0, slices=1, samples=8,
                bytes=8, sent=400,
            ),
        ),
        (program, ValueSecond(t=T + 0.5, name="loss", stream="0", count=2, last=3.0, low=1.0, high=3.0, total=4.0)),
    ]  # fmt: skip
    found = charts_of(rows)
    assert [line_of(found, "workers", f"data: {part}")[0] for part in ("produce", "blocked", "idle")] == [
        75,
        12.5,
        12.5,
    ]
    assert line_of(found, "bytes_per_second", "feed of data, sent")[0] == 200
    assert line_of(found, "value:loss", "rank 0")[0] == 2.0


def test_servers_of_tf_data_are_added_up_and_a_restart_is_left_out() -> None:
    rows: list[tuple[Stream, Metric]] = []
    for name in ("tf-worker-0", "tf-worker-1"):
        for second, cpu in enumerate((0.0, 0.5, 0.1, 1.1)):
            record = ServiceSecond(t=T + second + 0.5, stream=name, role="worker", cpu=cpu, rss=1, restarts=second // 2)
            rows.append((Stream("data", "algo-1", name), record))
    found = charts_of(rows)
    assert line_of(found, "services", "data: worker")[:4] == [None, 1.0, None, 2.0]
    assert not any(note.startswith("executors") for note in found.notes)  # the data workers have a chart of their own
    # A server that used more CPU time after its restart than all of the process before it had.
    more = [msgspec.structs.replace(record, cpu=record.cpu + record.restarts) for _, record in rows]  # type: ignore[union-attr]
    again = charts_of([(stream, record) for (stream, _), record in zip(rows, more, strict=True)])
    assert line_of(again, "services", "data: worker")[:4] == [None, 1.0, None, 2.0]


def test_a_run_without_metrics_has_no_chart_and_says_so() -> None:
    found = charts_of([])
    assert found.charts == ()
    assert found.notes[0].startswith("no metrics yet")


def at(t: float, name: str = "algo-1", group: str = "data") -> dict[str, object]:
    return {"t": t, "group": group, "host": name}


def life(events: list[Event], *, supervised: bool = True, now: float = 100.0) -> list[tuple[str, float, float | None]]:
    state = state_of(events, supervised)
    groups = [GroupLine("data", "ml.c5.xlarge", ("algo-1",))]
    found = timeline("r", 0.0, events, state, groups, now)
    return [(part.state, part.start, part.end) for part in found.groups[0].hosts[0].segments]


STARTED: list[Event] = [
    HostStarted(**at(1), pid=1),  # type: ignore[arg-type]
    HostRegistered(**at(3)),  # type: ignore[arg-type]
    ProgramStarted(**at(5), stream="feed", pid=2),  # type: ignore[arg-type]
]


def test_a_host_starts_is_ready_runs_and_stops() -> None:
    events: list[Event] = [*STARTED, JobStopping(t=9, reason="done"), RunFinished(t=12, status=Status.COMPLETED)]
    parts = [("starting", 1, 3), ("ready", 3, 5), ("running", 5, 9), ("stopping", 9, 12)]
    assert life(events) == parts


def test_a_host_that_goes_on_has_no_end_and_one_without_events_no_life() -> None:
    assert life(STARTED)[-1] == ("running", 5, None)
    assert life([]) == []


def test_a_host_is_done_before_the_job_and_is_released() -> None:
    done = [*STARTED, ProgramExited(**at(7), stream="feed", exit_code=0)]  # type: ignore[arg-type]
    assert life(done)[-1] == ("done", 7, None)
    assert life([*done, HostReleased(**at(8))])[-1] == ("done", 7, 8)  # type: ignore[arg-type]


def test_a_lost_host_stays_lost_through_the_stop_and_is_marked() -> None:
    events: list[Event] = [*STARTED, HostLost(**at(6), reason="silent"), JobStopping(t=9, reason="x")]  # type: ignore[arg-type]
    assert life([*events, RunFinished(t=10, status=Status.FAILED)])[-1] == ("lost", 6, 10)
    found = timeline("r", 0.0, events, state_of(events, True), [], 20.0)
    assert [(mark.t, mark.text) for mark in found.groups[0].hosts[0].marks] == [(6, "host lost: silent")]
    assert [moment.fault for moment in found.events] == [False, False, False, True, False]


def test_another_attempt_begins_anew() -> None:
    events: list[Event] = [*STARTED, AttemptStarted(t=8, number=2), HostStarted(**at(9), pid=3)]  # type: ignore[arg-type]
    assert life(events)[-2:] == [("running", 5, 8), ("starting", 9, None)]


def test_a_program_that_fails_is_a_fault_and_one_that_was_stopped_is_not() -> None:
    failed = ProgramExited(**at(6), stream="feed", signal=9)  # type: ignore[arg-type]
    stopped = ProgramExited(**at(6), stream="feed", signal=15, stopped=True)  # type: ignore[arg-type]
    lost = DataWorkerLost(**at(6), reason="killed", recovered=True)  # type: ignore[arg-type]
    for event, marks in (
        (failed, ["feed ended with SIGKILL"]),
        (stopped, []),
        (lost, ["data worker lost: killed; replaced"]),
    ):
        found = timeline("r", 0.0, [*STARTED, event], state_of([*STARTED, event], True), [], 20.0)
        assert [mark.text for mark in found.groups[0].hosts[0].marks] == marks


@pytest.mark.parametrize("supervised", [True, False])
def test_a_run_whose_engine_was_killed_ends_with_its_last_event(supervised: bool) -> None:
    assert life(STARTED, supervised=supervised)[-1][2] == (None if supervised else 5)


def test_a_metric_that_comes_every_few_seconds_is_a_line_and_stands_until_the_next_one() -> None:
    def value(t: float, of: float) -> ValueSecond:
        return ValueSecond(t=t, name="loss", stream="0", count=1, last=of, low=of, high=of, total=of)

    program = Stream("dnn", "algo-2", "values")
    found = charts_of([(program, value(T + t, of)) for t, of in ((2.5, 3.0), (6.5, 2.0))])
    values = line_of(found, "value:loss", "rank 0")
    shown = [each for each in values if each is not None]
    assert len(shown) >= 4, "as many as there are buckets from the first one on, and not two"
    assert sorted(set(shown), reverse=True) == [3.0, 2.0]
    assert shown == sorted(shown, reverse=True)
