"""Ctrl-C while a run is started and waited for: one fake run, real signals."""

from __future__ import annotations

import io
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from headrace.errors import EngineRefused, RunFailed, RunInterrupted
from headrace.job.run_handle import CtrlC, wait_for_success
from patience import allowed


def press() -> None:
    signal.raise_signal(signal.SIGINT)


class Fake:
    """A run. Its engine takes a lock to stop it, as some do, and the wait holds that lock when Ctrl-C comes."""

    id = "job-1"
    isolation = ""

    def __init__(self, ends: str = "Stopped", presses: int = 1, error: Exception | None = None) -> None:
        self.status = SimpleNamespace(value="InProgress")
        self.cause = None
        self.stops: list[bool] = []
        self._ends, self._presses, self._error = ends, presses, error
        self._lock = threading.Lock()
        self._asked = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> object:
        for _ in range(self._presses):
            with self._lock:
                press()
        for _ in range(max(self._presses, 1)):
            assert self._asked.acquire(timeout=20), "nobody has stopped it"
        self.status = SimpleNamespace(value=self._ends)
        return self.status

    def stop(self, now: bool = False) -> None:
        assert self._lock.acquire(timeout=2), "a deadlock"
        self._lock.release()
        self.stops.append(now)
        self._asked.release()
        if self._error is not None:
            raise self._error


def fit(fake: Fake, start: Callable[[], None] = lambda: None) -> None:
    """Does what `Job.fit` does."""
    with CtrlC() as ctrl_c:
        start()
        ctrl_c.stops(fake)
        wait_for_success(fake, logs=False)


def test_the_handler_takes_no_lock_that_the_wait_holds_and_the_second_ctrl_c_kills() -> None:
    fake = Fake(presses=2)
    with pytest.raises(RunInterrupted) as ended:
        fit(fake)
    assert (ended.value.code, fake.stops) == (130, [False, True])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_stop_that_fails_is_told_and_the_run_counts_as_it_ends(capfd: pytest.CaptureFixture[str]) -> None:
    fit(Fake("Completed", error=EngineRefused("scancel: no answer")))
    assert "cannot be stopped, it goes on: scancel: no answer" in capfd.readouterr().err
    with pytest.raises(RunFailed, match="Failed"):
        fit(Fake("Failed"))


def test_another_error_than_the_runs_own_end_is_raised_as_it_is() -> None:
    def refused() -> None:
        press()
        raise EngineRefused("no such host")

    with pytest.raises(EngineRefused, match="no such host"):
        fit(Fake(), refused)


def test_ctrl_c_during_the_start_stops_the_run_that_it_gives_and_a_second_one_breaks_the_start_off(
    capfd: pytest.CaptureFixture[str],
) -> None:
    fake = Fake(presses=0)
    with pytest.raises(RunInterrupted):
        fit(fake, press)
    assert fake.stops == [False]

    def impatient() -> None:
        press()
        press()
        pytest.fail("it goes on")

    with pytest.raises(RunInterrupted):
        fit(Fake(), impatient)
    assert "stopped by Ctrl-C before the run began" in capfd.readouterr().err


def test_at_a_prompt_and_behind_a_script_with_one_it_is_a_keyboard_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "flags", SimpleNamespace(inspect=1))  # python -i
    with pytest.raises(KeyboardInterrupt) as ended:
        fit(Fake())
    assert ended.type is KeyboardInterrupt


def test_a_run_that_cannot_be_stopped_can_be_left(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    told = io.StringIO()  # another thread writes while this one reads: pytest's capture would lose what falls between
    monkeypatch.setattr(sys, "stderr", told)

    class Stubborn(Fake):
        def wait(self, timeout: float | None = None) -> object:
            press()
            deadline = time.monotonic() + allowed(20)
            while "Ctrl-C again leaves it" not in told.getvalue():
                assert time.monotonic() < deadline, told.getvalue()
                time.sleep(0.01)
            time.sleep(0.05)
            press()
            pytest.fail("it is waited for all the same")

    with pytest.raises(RunInterrupted):
        fit(Stubborn(error=EngineRefused("scancel: no answer")))
    assert "left; job-1 may run on: `headrace stop job-1` stops it later" in capfd.readouterr().err  # by the handler


class Closed(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_ctrl_c_stops_a_run_also_when_nothing_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Closed())
    fake = Fake(presses=2, error=EngineRefused("scancel: no answer"))
    with pytest.raises(RunInterrupted):
        fit(fake)
    assert fake.stops


def test_lines_that_cannot_be_printed_end_the_showing_and_not_the_wait(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Talking(Fake):
        def output(self) -> list[str]:
            return ["one", "two"]

        def wait(self, timeout: float | None = None) -> object:
            self.status = SimpleNamespace(value="Completed")
            return self.status

    monkeypatch.setattr(sys, "stdout", Closed())
    run = Talking()
    wait_for_success(run, logs=True)
    assert run.status.value == "Completed"
    unseen = "headrace: the output cannot be written (Broken pipe): job-1 goes on unseen"
    assert capfd.readouterr().err.count(unseen) == 1
