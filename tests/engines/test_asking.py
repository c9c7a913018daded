"""Who is asked about a run of a platform, how often, and what a platform that does not answer means."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace import engines
from headrace.engines.asking import AskEngine
from headrace.engines.handle import RemoteHandle
from headrace.engines.platform_news import platform_news
from headrace.errors import HeadraceError
from headrace.insight.run_cache import RunCache
from headrace.runs import Cause, CauseKind, EventWriter, Run, RunPaths, Status, adopt, create_run, give_to_engine
from headrace.runs.events import RunFinished, SecondaryStatus, StatusChanged


class Platform:
    """An engine whose runs are what the test says."""

    def __init__(self) -> None:
        self.asked = 0
        self.here = True
        self.down = False
        self.error: Exception = HeadraceError("no answer")
        self.stopped: list[bool] = []

    def refresh(self, run: Run) -> None:
        self.asked += 1
        if self.down:
            raise self.error

    def alive(self, run: Run) -> bool:
        return self.here

    def stop(self, run: Run, now: bool) -> bool:
        self.stopped.append(now)
        self.here = False
        return True


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Platform:
    made = Platform()
    monkeypatch.setattr(engines, "find", lambda name, *_: {"p": made}[name])
    return made


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = create_run("job", "p", runs=tmp_path)
    give_to_engine(made)
    return made


def finish(paths: RunPaths) -> None:
    with EventWriter(paths.events("engine")) as events:
        events.write(RunFinished(t=1.0, status=Status.COMPLETED))


def test_an_engine_is_asked_now_and_then_and_never_about_a_run_that_has_ended(platform, paths) -> None:
    ask = AskEngine(seconds=60)
    run = Run(paths, ask)
    for _ in range(3):
        assert (run.status, run.finished) == (Status.IN_PROGRESS, False)
    assert platform.asked == 1
    for _ in range(3):
        Run(paths, AskEngine(seconds=0)).state()
    assert platform.asked == 4
    finish(paths)
    assert Run(paths, AskEngine(seconds=0)).status is Status.COMPLETED
    assert platform.asked == 4


def test_without_an_end_in_its_record_a_run_that_is_gone_has_failed(platform, paths) -> None:
    assert not Run(paths).finished, "nobody was asked"
    platform.here = False
    assert Run(paths, AskEngine()).status is Status.FAILED
    assert RunCache(paths.root.parent, AskEngine()).lines(2.0)[0].status == "Failed"


@pytest.mark.promise("engines", "a run on a platform needs no process where it was submitted")
def test_a_platform_that_does_not_answer_is_told_once_and_changes_nothing(platform, paths) -> None:
    told: list[str] = []
    run = Run(paths, AskEngine(told.append, seconds=0))
    platform.down = True
    assert [run.finished, run.finished] == [False, False]
    assert told == [f"{paths.id}: the engine p cannot be asked: no answer. Shown is what its record says."]
    platform.down = False
    assert not run.finished
    platform.down = True
    assert not run.finished
    assert len(told) == 2


def test_an_engine_that_fails_is_told_once_and_other_runs_are_seen_all_the_same(platform, paths, tmp_path) -> None:
    other = create_run("other", "p", runs=tmp_path)
    give_to_engine(other)
    finish(other)
    platform.down, platform.error = True, subprocess.TimeoutExpired("queue", 60)
    told: list[str] = []
    cache = RunCache(tmp_path, AskEngine(told.append, seconds=0))
    assert sorted(line.status for line in cache.lines(2.0) + cache.lines(2.0)) == ["Completed"] * 2 + ["InProgress"] * 2
    assert told == [
        f"{paths.id}: the engine p cannot be asked: TimeoutExpired('queue', 60). Shown is what its record says."
    ]


def test_no_process_takes_over_a_run_that_its_engine_answers_for(platform, paths) -> None:
    assert adopt(paths).supervisor_pid == 0
    assert Run(paths).header.supervisor_pid == 0


def test_a_handle_waits_by_asking_and_stops_through_the_engine(platform, paths) -> None:
    handle = RemoteHandle(paths, AskEngine(seconds=0))
    assert handle.wait(0.05) is Status.IN_PROGRESS
    assert handle.exit_code is None
    handle.stop(now=True)
    assert platform.stopped == [True]
    finish(paths)
    assert (handle.wait(5), handle.exit_code) == (Status.COMPLETED, 0)


def test_what_a_platform_says_again_or_said_too_early_is_not_written(platform, paths) -> None:
    with platform_news(paths) as news:
        assert news.status(SecondaryStatus.PENDING, "no nodes", at=10.0)
        assert not news.status(SecondaryStatus.PENDING, "no nodes", at=11.0)
        assert news.status(SecondaryStatus.PENDING, "next", at=12.0)
    with EventWriter(paths.events("engine")) as events:
        events.write(StatusChanged(t=13.0, status=SecondaryStatus.STARTING))
    lost = Cause(CauseKind.HOST_LOST, "node gone", infrastructure=True)
    with platform_news(paths) as news:
        assert not news.status(SecondaryStatus.PENDING, "next", at=12.5), "asked before it started"
        assert news.end(Status.FAILED, lost)
        assert not news.end(Status.FAILED, lost)
    with platform_news(paths) as news:
        assert not news.status(SecondaryStatus.PENDING, "after its end", at=20.0)
    state = Run(paths).state()
    assert [part.status.value for part in state.transitions] == ["Pending", "Starting", "Failed"]
    assert (state.status, state.cause, state.failure_reason) == (Status.FAILED, lost, "node gone")
