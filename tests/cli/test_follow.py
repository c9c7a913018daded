"""Following a run in the command line: what Ctrl-C does to engines that lock, and to those that fail."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from headrace.cli.follow import follow
from headrace.cli.main import invoke
from headrace.engines.handle import Handle
from headrace.errors import EngineRefused
from headrace.job.run_handle import RunLeft
from headrace.runs import EventWriter, Run, RunPaths, Status, create_run
from headrace.runs.events import RunFinished


class Storing(Handle):
    """A run that has finished. While Ctrl-C comes its wait holds the lock that its stop takes."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def wait(self, timeout: float | None = None) -> Status:
        with self._lock:
            signal.raise_signal(signal.SIGINT)
        assert self._stopped.wait(20), "nobody has stopped it"
        return self.status

    def stop(self, now: bool = False) -> None:
        assert self._lock.acquire(timeout=2), "a deadlock"
        self._lock.release()
        self._stopped.set()


class Deaf(Handle):
    """A run whose engine cannot stop it; it completes then."""

    def wait(self, timeout: float | None = None) -> Status:
        return self.status

    def stop(self, now: bool = False) -> None:
        complete(self.paths)
        raise EngineRefused("scancel: no answer")


def complete(paths: RunPaths) -> None:
    with EventWriter(paths.events("engine")) as events:
        events.write(RunFinished(t=1.0, status=Status.COMPLETED))


def test_the_handler_waits_for_no_lock_that_the_wait_holds(tmp_path: Path) -> None:
    paths = create_run("job", runs=tmp_path)
    complete(paths)
    assert follow(lambda: Storing(Run(paths)), Mock()).exit_code == 0


def test_a_stop_that_fails_is_told_and_the_run_is_followed_to_its_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = create_run("job", runs=tmp_path)
    screen = Mock()
    screen.begin = lambda run: signal.raise_signal(signal.SIGINT)
    assert follow(lambda: Deaf(Run(paths)), screen).exit_code == 0
    screen.stopping.assert_called_once_with(now=False)
    assert "cannot be stopped, it goes on: scancel: no answer" in capfd.readouterr().err


class Stubborn(Handle):
    """A run that goes on and whose engine cannot stop it. Ctrl-C comes once more whenever a stop has failed."""

    tries = 0

    def wait(self, timeout: float | None = None) -> Status:
        return self.status

    def stop(self, now: bool = False) -> None:
        self.tries += 1
        threading.Timer(0.3, press_main).start()
        raise EngineRefused("scancel: no answer")


def test_ctrl_c_before_the_run_begins_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headrace.job.load_job", lambda *_: signal.raise_signal(signal.SIGINT))
    assert invoke(["run", "job.yaml"]) == 130
    assert capfd.readouterr().err.strip() == "headrace: stopped by Ctrl-C before the run began"


def press_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_after_a_stop_that_failed_the_next_ctrl_c_leaves_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = create_run("job", runs=tmp_path)
    handle, screen = Stubborn(Run(paths)), Mock()
    screen.begin = lambda run: signal.raise_signal(signal.SIGINT)
    with pytest.raises(RunLeft):
        follow(lambda: handle, screen)
    assert handle.tries == 1
    told = capfd.readouterr().err
    assert f"Ctrl-C again leaves it; `headrace stop {paths.id}` stops it later" in told
    assert told.endswith(f"headrace: left; {paths.id} may run on: `headrace stop {paths.id}` stops it later\n")
