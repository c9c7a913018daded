"""Step time and data wait, and the lines that tell them."""

from __future__ import annotations

import copy
import errno
import itertools
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import feed_data
import msgspec
import numpy as np
import pytest
import torch

import headrace
from headrace.feed import DataLoader, track
from headrace.feed.client import worker_pool
from headrace.feed.client.worker_pool import ASK_AFTER, GONE_AFTER, Keepalive
from headrace.feed.metrics import step_meter as meter
from headrace.feed.metrics.metric_file import MetricFile
from headrace.feed.metrics.step_meter import StepMeter
from headrace.feed.metrics.track import extent
from headrace.runs.metric_records import LoaderSecond, Metric


class Clock:
    """A clock that the test moves."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + 1e9

    def thread_time(self) -> float:
        return self.now / 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(meter, "time", clock)
    return clock


def lines(path: Path) -> list[LoaderSecond]:
    found = [msgspec.json.decode(line, type=Metric) for line in path.read_bytes().splitlines()]
    return [line for line in found if isinstance(line, LoaderSecond)]


def one_pass(step_meter: StepMeter, clock: Clock, epoch: int, steps: list[tuple[float, float]], *, end: bool) -> None:
    """Runs steps of (wait, compute) seconds; with `end` the loop asks once more."""
    step_meter.begin()
    for wait, compute in steps:
        step_meter.waiting()
        clock.now += wait
        step_meter.got(8, 100, epoch)
        clock.now += compute
    if end:
        step_meter.waiting()
        step_meter.ended()


def test_a_step_is_its_wait_and_its_work_and_nothing_between_epochs_is_counted(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    step_meter = StepMeter("train", str(path))
    one_pass(step_meter, clock, 0, [(0.5, 0.1), (0.125, 0.0), (0.0, 0.025)], end=True)
    clock.now += 1000
    one_pass(step_meter, clock, 1, [(1.0, 1.0)], end=True)
    first, second = lines(path)
    assert (first.epoch, first.steps, first.samples, first.bytes, first.loader) == (0, 3, 24, 300, "train")
    assert (first.wait, first.step) == pytest.approx((0.625, 0.75))
    assert (first.step_min, first.step_max) == pytest.approx((0.025, 0.6))
    assert first.t == pytest.approx(1e9 + 100.75)
    assert (second.epoch, second.steps, second.wait, second.step) == (1, 1, 1.0, 2.0)
    assert step_meter.totals.steps == 4
    assert step_meter.totals.step == pytest.approx(2.75)


def test_a_line_is_written_about_once_a_second_and_the_lines_sum_up(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    step_meter = StepMeter("train", str(path))
    one_pass(step_meter, clock, 0, [(0.01, 0.09)] * 100, end=True)
    written = lines(path)
    assert 9 <= len(written) <= 11
    assert sum(line.steps for line in written) == 100
    assert sum(line.wait for line in written) == pytest.approx(1.0)
    assert sum(line.step for line in written) == pytest.approx(10.0)


def test_the_step_of_a_loop_that_was_broken_off_is_not_counted_to_the_next_epoch(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    step_meter = StepMeter("train", str(path))
    one_pass(step_meter, clock, 0, [(0.1, 0.1), (0.1, 0.1)], end=False)
    clock.now += 1000
    one_pass(step_meter, clock, 1, [(0.1, 0.1)], end=True)
    assert [(line.epoch, line.steps, line.step) for line in lines(path)] == [
        (0, 1, pytest.approx(0.2)),
        (1, 1, pytest.approx(0.2)),
    ]


class Device:
    """A device that does its work when the test says so; a mark's time is that at which it was passed."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.there = True

    def mark(self) -> Mark | None:
        if not self.there:
            return None
        self.marks.append(Mark())
        return self.marks[-1]

    def reach(self, *times: float) -> None:
        """Passes the marks that follow."""
        waiting = [mark for mark in self.marks if mark.passed is None]
        for mark, at in zip(waiting, times, strict=False):
            mark.passed = at


class Mark:
    passed: float | None = None

    def query(self) -> bool:
        return self.passed is not None

    def elapsed_time(self, end: Mark) -> float:
        assert self.passed is not None
        assert end.passed is not None, "it would have to be waited for"
        return 1000 * (end.passed - self.passed)


def steps_on(device: Device, step_meter: StepMeter, clock: Clock, count: int, *, copies: bool = False) -> None:
    for _ in range(count):
        step_meter.waiting()
        if copies:
            begin, end = device.mark(), device.mark()
            assert begin is not None
            assert end is not None
            step_meter.copied(begin, end)
        clock.now += 0.1
        step_meter.got(8, 100, 0)
        clock.now += 0.4
    step_meter.pause()


def test_compute_is_the_device_s_time_and_its_line_waits_for_the_device(clock: Clock, tmp_path: Path) -> None:
    path, device = tmp_path / "metrics", Device()
    step_meter = StepMeter("train", str(path), device.mark)
    steps_on(device, step_meter, clock, 2)
    step_meter.ended()
    device.reach(1.0, 1.25, 2.0)  # the batch of the second step is there, its work is not done
    steps_on(device, step_meter, clock, 1)
    assert not path.exists()
    device.reach(2.5)
    steps_on(device, step_meter, clock, 1)
    [line] = lines(path)
    assert (line.steps, line.compute) == (2, pytest.approx(0.75))
    assert line.h2d is None
    assert line.t < clock.time() - 0.5  # when its window ended, not when it was written


def test_the_copies_of_a_step_are_those_of_its_batch(clock: Clock, tmp_path: Path) -> None:
    path, device = tmp_path / "metrics", Device()
    step_meter = StepMeter("train", str(path), device.mark)
    steps_on(device, step_meter, clock, 2, copies=True)
    # begin and end of the copy, batch handed over, end of the step
    device.reach(0.0, 0.1, 0.2, 0.5, 0.5, 0.7, 0.7, 1.0)
    step_meter.close()
    [line] = lines(path)
    assert (line.h2d, line.compute) == (pytest.approx(0.3), pytest.approx(0.6))


def test_what_the_device_has_not_done_at_the_end_is_not_waited_for_and_not_guessed(
    clock: Clock, tmp_path: Path
) -> None:
    path, device = tmp_path / "metrics", Device()
    step_meter = StepMeter("train", str(path), device.mark)
    steps_on(device, step_meter, clock, 2)
    device.reach(1.0, 1.25, 2.0)
    step_meter.ended()
    assert not path.exists()
    del step_meter  # as at the end of the process
    [line] = lines(path)
    assert (line.steps, line.compute) == (2, None)


def test_a_line_with_a_step_that_could_not_be_measured_has_no_compute(clock: Clock, tmp_path: Path) -> None:
    path, device = tmp_path / "metrics", Device()
    device.there = False  # CUDA is not in use yet, or a graph is captured
    step_meter = StepMeter("train", str(path), device.mark)
    steps_on(device, step_meter, clock, 1)
    device.there = True
    steps_on(device, step_meter, clock, 1)
    device.reach(1.0, 1.5)
    step_meter.close()
    [line] = lines(path)
    assert (line.steps, line.compute) == (2, None)


def test_what_a_loop_left_without_an_end_is_written_when_it_is_gone(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    step_meter = StepMeter("train", str(path))
    one_pass(step_meter, clock, 0, [(0.1, 0.1), (0.1, 0.1)], end=False)
    clock.now += 1000  # the program saves its model
    assert not path.exists()
    del step_meter
    [line] = lines(path)
    assert (line.steps, line.t) == (1, pytest.approx(1e9 + 100.2))


def test_a_copied_loader_measures_for_itself(tmp_path: Path) -> None:
    step_meter = StepMeter("train", str(tmp_path / "metrics"))
    step_meter.waiting()
    step_meter.got(1, 1, 0)
    step_meter.waiting()
    copied = pickle.loads(pickle.dumps(step_meter))
    assert (copied.totals.steps, copied.file.path) == (0, step_meter.file.path)


def test_outside_a_job_no_event_is_recorded() -> None:
    device = Device()
    step_meter = StepMeter("train", "", device.mark)
    for _ in range(3):
        step_meter.waiting()
        assert not step_meter.counts_queue
        step_meter.got(1, 1, 0)
    assert not device.marks


@pytest.mark.parametrize("place", ["there-is-no-such-directory/metrics", "full"])
def test_figures_that_cannot_be_written_are_told_once_and_the_training_goes_on(
    place: str, clock: Clock, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / place
    if place == "full":
        path.symlink_to("/dev/full")
    step_meter = StepMeter("train", str(path))
    one_pass(step_meter, clock, 0, [(0.6, 0.6)] * 4, end=True)
    assert step_meter.totals.steps == 4
    [told] = capfd.readouterr().err.splitlines()
    assert told.startswith(f"headrace: cannot write {path}: No s")  # such file, space left
    if place == "full":
        path.unlink()
    else:
        path.parent.mkdir()
    one_pass(step_meter, clock, 1, [(0.6, 0.6)], end=True)
    assert [line.epoch for line in lines(path)] == [1]
    assert capfd.readouterr().err == ""


def test_a_line_that_a_full_disk_cut_off_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics"
    file, whole, room = MetricFile(str(path)), os.write, iter([5])

    def write(descriptor: int, data: bytes) -> int:
        for count in room:
            return whole(descriptor, data[:count])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    file.write({"n": 1, "metric": "cut off"})
    monkeypatch.undo()
    file.write({"n": 2})
    file.write({"n": 3})
    assert path.read_bytes().splitlines()[1:] == [b'{"n":2}', b'{"n":3}']


def test_the_queue_is_a_mean_over_the_steps_that_counted_it(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    step_meter = StepMeter("train", str(path))
    for ready in (4, 2, 0):
        step_meter.waiting()
        assert step_meter.counts_queue
        step_meter.queued(ready)
        step_meter.got(1, 1, 0)
        clock.now += 0.004
        step_meter.waiting()
        assert not step_meter.counts_queue  # too soon
        step_meter.got(1, 1, 0)
        clock.now += 0.02
    step_meter.waiting()
    step_meter.ended()
    [line] = lines(path)
    assert (line.steps, line.queue) == (6, 2.0)


def test_a_step_that_was_paused_ends_there(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    step_meter = StepMeter("train", str(path))
    steps_on(Device(), step_meter, clock, 2)
    clock.now += 1000  # validation
    step_meter.ended()
    [line] = lines(path)
    assert (line.steps, line.step) == (2, pytest.approx(1.0))


def test_outside_a_job_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    list(track([1, 2, 3]))
    assert list(tmp_path.iterdir()) == []


def test_track_is_the_loader_itself_and_measures_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    monkeypatch.setenv("HEADRACE_METRICS", str(path))
    inner = torch.utils.data.DataLoader(torch.arange(20.0), batch_size=4)
    tracked = headrace.track(inner, name="valid")
    assert len(tracked) == 5
    assert tracked.batch_size == 4
    for _ in range(2):
        assert [batch.tolist() for batch in tracked] == [batch.tolist() for batch in inner]
    with pytest.raises(AttributeError):
        tracked.nothing  # noqa: B018
    assert [(line.loader, line.epoch, line.steps, line.samples, line.bytes) for line in lines(path)] == [
        ("valid", 0, 5, 20, 80),
        ("valid", 1, 5, 20, 80),
    ]


class Scalars:
    """As torch's SummaryWriter; W&B's run and MLflow are asked likewise, each by the method that it has."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, int | None]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.rows.append((tag, value, step))


class MetricsLogger:
    def __init__(self) -> None:
        self.rows: list[tuple[str, float, int | None]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows += [(name, value, step) for name, value in metrics.items()]


class WandbRun:
    def __init__(self) -> None:
        self.rows: list[tuple[str, float, int | None]] = []

    def define_metric(self, name: str) -> None:
        pass

    def log(self, data: dict[str, float], step: int | None = None, commit: bool | None = None) -> None:
        assert (step, commit) == (None, False), "the numbers of its rows are the user's"
        self.rows += [(name, value, None) for name, value in data.items()]


class Function:
    def __init__(self) -> None:
        self.rows: list[tuple[str, float, int | None]] = []

    def __call__(self, values: dict[str, float], step: int) -> None:
        self.rows += [(name, value, step) for name, value in values.items()]


@pytest.mark.promise("export", "`headrace.track` gives a loader's figures to a logger, in a job or without one")
@pytest.mark.parametrize("kind", [Scalars, MetricsLogger, WandbRun, Function])
@pytest.mark.parametrize("own", [False, True], ids=["another loader", "headrace's loader"])
def test_a_logger_gets_the_figures_of_any_loader_once(
    kind: type[Scalars], own: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "metrics"
    monkeypatch.setenv("HEADRACE_METRICS", str(path))
    logger = kind()
    inner: Any = DataLoader(range(12), batch_size=4, name="mine") if own else [torch.zeros(4)] * 3
    tracked = headrace.track(inner, "mine", logger)
    for _ in range(2):
        assert len(list(tracked)) == 3
    assert [line.steps for line in lines(path)] == [3, 3], "measured once"
    figures = ("step_time", "data_wait", "samples_per_second")
    names = [name for name, _, _ in logger.rows if not name.startswith("headrace/queue")]
    assert names == [f"headrace/{figure}/mine" for figure in figures] * 2
    assert {step for _, _, step in logger.rows} == ({None} if kind is WandbRun else {3, 6})
    step_time, data_wait, rate = (value for _, value, _ in logger.rows[:3])
    first = lines(path)[0]
    assert (step_time, data_wait) == pytest.approx((1000 * first.step / 3, 100 * first.wait / first.step))
    assert rate == pytest.approx(12 / first.step)


@pytest.mark.promise("export", "`headrace.track` gives a loader's figures to a logger, in a job or without one")
def test_a_logger_works_outside_a_job_and_hears_rank_0_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # of torchrun
    for rank, count in (("0", 3), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        list(headrace.track([torch.zeros(4)], logger=(logger := Function())))
        assert len(logger.rows) == count


def test_what_a_logger_takes_is_no_part_of_a_step(clock: Clock) -> None:
    def slow(values: dict[str, float], step: int) -> None:
        clock.now += 30.0

    tracked = headrace.track([], logger=slow)
    one_pass(tracked._meter, clock, 0, [(0.5, 1.0), (0.5, 1.0), (0.5, 1.0)], end=True)
    assert (tracked._meter.totals.step, tracked._meter.totals.wait) == pytest.approx((4.5, 1.5))


def test_a_logger_that_raises_is_told_and_the_training_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    tracked = headrace.track([1, 2], logger=lambda values, step: {}["gone"])
    assert [list(tracked), list(tracked)] == [[1, 2]] * 2
    assert capfd.readouterr().err == "headrace: nothing more is logged, the logger raised KeyError: 'gone'\n"


@pytest.mark.parametrize("logger", [3, "tensorboard", [], logging.getLogger("x")])
def test_what_is_no_logger_is_refused(logger: object) -> None:
    with pytest.raises(TypeError, match=r"logger must have log_metrics .* not \w+"):
        headrace.track([1], logger=logger)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_a_tracked_loader_can_be_copied_as_the_loader_can(
    copied: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_METRICS", str(tmp_path / "metrics"))
    inner = torch.utils.data.DataLoader(torch.arange(20.0), batch_size=4)
    again = copied(track(inner))
    assert again.batch_size == 4
    assert len(list(again)) == 5
    assert [line.steps for line in lines(tmp_path / "metrics")] == [5]


@pytest.mark.parametrize(
    ("element", "samples"),
    [
        (torch.tensor(7), 1),
        ((torch.tensor(7.0), torch.tensor(1)), 1),
        ({"weight": torch.tensor(0.5), "image": torch.ones(4, 2)}, 4),
        (np.array(3.0), 1),
        (np.int64(3), 1),
        (3, 1),
        ("a text", 1),
        (["texts", "of a batch or of a sample"], 0),
    ],
    ids=str,
)
def test_an_element_without_a_leading_dimension_is_one_sample(element: object, samples: int) -> None:
    assert extent(element)[0] == samples


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_measures_itself_and_its_lines_are_the_run_s_metric(
    workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "metrics"
    monkeypatch.setenv("HEADRACE_METRICS", str(path))
    with DataLoader(feed_data.Noise(20, delay=0.005), batch_size=4, num_workers=workers, name="mine") as loader:
        for _ in range(2):
            list(loader)
        stats: dict[str, Any] = loader.stats()
    written = lines(path)
    assert {line.loader for line in written} == {"mine"}
    assert [sum(line.steps for line in group) for _, group in itertools.groupby(written, lambda line: line.epoch)] == [
        5,
        5,
    ]
    assert stats["steps"] == 10
    assert stats["samples"] == 40 == sum(line.samples for line in written)
    assert stats["bytes"] == sum(line.bytes for line in written) > 0
    assert 0 < stats["wait_seconds"] <= stats["step_seconds"]
    assert 0 < stats["stall_fraction"] <= 1
    assert all(line.queue is not None and line.compute is line.h2d is None for line in written)
    assert (stats["worker_cpu_seconds"] > 0) is (workers > 0)


# Signs of life


def test_a_peer_that_speaks_is_never_asked() -> None:
    watched = Keepalive(0.0)
    assert [watched.check(now / 2, now) for now in range(1, 50)] == [""] * 49


def test_a_silent_peer_is_asked_once_and_given_up_when_it_does_not_answer() -> None:
    watched = Keepalive(0.0)
    assert watched.check(ASK_AFTER, 0) == ""
    assert watched.check(ASK_AFTER + 0.1, 0) == "ask"
    assert watched.check(ASK_AFTER + 0.2, 0) == ""
    assert watched.check(ASK_AFTER + 0.1 + GONE_AFTER, 0) == ""
    assert watched.check(ASK_AFTER + 0.2 + GONE_AFTER, 0) == "gone"


def test_an_answer_that_has_come_counts_however_late_it_is_read() -> None:
    watched = Keepalive(0.0)
    assert watched.check(100.0, 0) == "ask"
    assert watched.check(1000.0, 7) == ""
    assert watched.check(1000.1, 7) == ""
    assert watched.check(1000.0 + ASK_AFTER + 0.1, 7) == "ask"
    assert worker_pool.GONE_AFTER >= 1
