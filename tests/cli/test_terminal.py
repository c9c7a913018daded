"""The progress line and log lines on a screen: pure functions and a stream that remembers."""

from __future__ import annotations

import doctest
import io
from pathlib import Path

import pytest

from headrace.cli.views import terminal
from headrace.cli.views.plan_document import brief, work
from headrace.cli.views.run_screen import Progress, RunScreen
from headrace.cli.views.terminal import Terminal
from headrace.insight.render import plain_text
from headrace.instance import launch_plan
from headrace.instance.launch_plan import GroupPlan, HostPlan, LaunchPlan
from headrace.runs import (
    Cause,
    CauseKind,
    EventWriter,
    HostSecond,
    LoaderSecond,
    LogLine,
    Run,
    Status,
    Stream,
    create_run,
)
from headrace.runs.events import ChannelProgress, DataWorkerLost, ProgramExited
from headrace.runs.state import run_finished
from loader_seconds import loader_second

A, B = Stream("dnn", "algo-1", "0"), Stream("dnn", "algo-1", "1")


def second(t: float, **changes: object) -> LoaderSecond:
    return loader_second(t, **{"wait": 0.25, **changes})


@pytest.mark.parametrize("module", [launch_plan, plain_text, terminal])
def test_the_examples_in_the_docstrings_are_true(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0


def test_progress_adds_rates_over_ranks_and_shows_the_steps_of_one() -> None:
    now = Progress()
    assert now.text(3.0, 10.0) == "3.0 s"
    for t in (9.0, 10.0):
        now.add(A, second(t))
        now.add(B, second(t, wait=0.75))
    assert now.text(75, 10.5) == "1:15  20 steps  200.0 samples/s  data wait 50.0 %"


def test_progress_says_nothing_about_rates_that_are_old() -> None:
    now = Progress()
    now.add(A, second(10.0))
    assert now.text(1, 30.0) == "1.0 s  10 steps"


def test_a_program_that_is_silent_for_a_minute_is_told_on_the_progress_line() -> None:
    now = Progress()
    assert now.text(300, 300.0) == "5:00", "no program has started"
    now.add(A, second(10.0))
    now.heard(20.0)
    assert now.text(79, 79.0) == "1:19  10 steps"
    assert now.text(240, 220.0) == "4:00  10 steps  no output and no step for 3:20"
    now.add(A, HostSecond(t=220, cpu=1, cores=1, rss=1, processes=1))
    assert "3:20" in now.text(240, 220.0), "that a host is there is no sign of life of its programs"
    now.add(A, second(220.0))
    assert "no output" not in now.text(240, 220.0)


def test_progress_shows_a_channel_until_all_of_it_is_there() -> None:
    now = Progress()
    now.staged(ChannelProgress(t=0.0, channel="train", files=3, files_total=9, bytes=2_000_000, bytes_total=7_400_000))
    assert now.text(2.0, 0.0) == "2.0 s  channel train: 3/9 files, 2/7 MB"
    now.staged(ChannelProgress(t=1.0, channel="train", files=9, files_total=9, bytes=7_400_000, bytes_total=7_400_000))
    assert now.text(3.0, 1.0) == "3.0 s"


def test_progress_stays_with_the_training_loader() -> None:
    now = Progress()
    now.add(A, second(10.0, loader="eval", steps=99))
    assert "99 steps" in now.text(1, 10)
    now.add(A, second(11.0, loader="train", steps=1))
    now.add(A, second(12.0, loader="eval", steps=99))
    assert "  1 steps" in now.text(1, 12)
    now.add(A, HostSecond(t=12, cpu=1, cores=1, rss=1, processes=1))
    assert "  1 steps" in now.text(1, 12)


def test_a_line_is_written_above_the_progress_line() -> None:
    out = io.StringIO()
    screen = Terminal(out, interactive=True, colour=False)
    screen.below("1 s")
    screen.log(LogLine(0.0, A, "o", "hello"))
    screen.below("")
    assert out.getvalue() == "\r\x1b[2K1 s\r\x1b[2Kdnn/algo-1[0] hello\n1 s\r\x1b[2K"


def test_on_a_pipe_there_is_no_progress_line() -> None:
    out = io.StringIO()
    screen = Terminal(out, interactive=False, colour=False)
    screen.below("1 s")
    screen.log(LogLine(0.0, A, "o", "hello"))
    assert out.getvalue() == "dnn/algo-1[0] hello\n"


def test_a_long_progress_line_is_cut_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    out = io.StringIO()
    Terminal(out, interactive=True, colour=False).below("x" * 50)
    assert out.getvalue() == "\r\x1b[2K" + "x" * 9


def test_colours_of_a_program_are_closed_at_the_end_of_its_line() -> None:
    out = io.StringIO()
    Terminal(out, interactive=True, colour=True).log(LogLine(0.0, A, "o", "\x1b[31mred"))
    assert out.getvalue().endswith("\x1b[31mred\x1b[0m\n")


def test_a_timestamp_shows_microseconds() -> None:
    out = io.StringIO()
    screen = Terminal(out, interactive=False, colour=False)
    for t in (1_795_201_262.123456, 1_795_201_262.0):
        screen.log(LogLine(t, A, "o", "x"), timestamps=True)
    assert out.getvalue().splitlines() == [
        "2026-11-20T19:01:02.123456Z dnn/algo-1[0] x",
        "2026-11-20T19:01:02.000000Z dnn/algo-1[0] x",
    ]


def test_the_plan_in_brief_has_one_line_a_group() -> None:
    def host(name: str, group: str, *cpus: int) -> HostPlan:
        return HostPlan(name, group, "127.0.1.1", "/b", "/r", cpus)

    plan = LaunchPlan(
        job_name="j",
        run_id="j-1",
        entry_point="t.py",
        groups=(
            GroupPlan("dnn", "ml.m5.large", ("algo-1", "algo-2"), processes_per_host=2, feed_executors=1),
            GroupPlan("data", "ml.c5.large", ("algo-3",), entry_point=False, feed_executors=3),
        ),
        hosts=(host("algo-1", "dnn", 0), host("algo-2", "dnn", 0), host("algo-3", "data", 1, 2, 3)),
        leader="algo-1",
    )
    assert brief(plan) == [
        "dnn: 2 x ml.m5.large (algo-1..algo-2), CPUs 0: 2 ranks + 1 data worker",
        "data: 1 x ml.c5.large (algo-3), CPUs 1-3: 3 data workers",
        "isolation: none",
    ]
    assert work(GroupPlan("idle", "t", (), entry_point=False)) == "nothing"


def test_who_was_lost_for_memory_is_said_and_whether_the_job_can_go_on() -> None:
    out = io.StringIO()
    screen = RunScreen(Terminal(out, interactive=False, colour=False))
    where = {"t": 1.0, "group": "data", "host": "algo-1"}
    screen.event(ProgramExited(**where, stream="tf-worker-0", signal=9, reason="killed by the kernel for memory (OOM)"))
    for fatal in (False, True):
        screen.event(DataWorkerLost(**where, reason="tf-worker-0 killed", stream="tf-worker-0", fatal=fatal))
    assert [line.removeprefix("headrace: ") for line in out.getvalue().splitlines()] == [
        "data/algo-1[tf-worker-0]: ended with SIGKILL: killed by the kernel for memory (OOM)",
        "data/algo-1: data worker lost: tf-worker-0 killed; the job goes on without it (run degraded)",
        "data/algo-1: data worker lost: tf-worker-0 killed; the job cannot go on",
    ]


def test_of_a_failed_run_without_program_logs_the_logs_of_its_engine_are_named(tmp_path: Path) -> None:
    for status, option in ((Status.FAILED, " --platform"), (Status.STOPPED, "")):
        out = io.StringIO()
        paths = create_run(f"j-{status.value.lower()}", "slurm", tmp_path)
        with EventWriter(paths.events("engine")) as events:
            events.write(run_finished(status, Cause(CauseKind.INSTANCE_NOT_STARTED, "no agent")))
        RunScreen(Terminal(out, interactive=False, colour=False)).end(Run(paths))
        assert out.getvalue().endswith(f"  headrace logs {paths.id}{option}\n")
