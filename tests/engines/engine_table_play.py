"""Plays a row of the table of engines on a platform, as a user and an observer would: by its command line, by deeds on
its nodes, and by looking at what is left."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import suppress

from engine_table import End, FaultRow, JobRow
from engine_table_platform import Fields, Platform

from headrace.runs import Run
from patience import allowed

PATIENCE = 90.0  # for a job to start: nodes are asked for, agents come together


class Play:
    """One job on one platform.

    Args:
        platform: where.
        name: of the job, not yet used on this platform.

    Attributes:
        run_id: of the run; empty before it was submitted.
    """

    def __init__(self, platform: Platform, name: str) -> None:
        self.platform = platform
        self.name = name
        self.run_id = ""
        self._struck = 0.0
        self._submitter: subprocess.Popen[str] | None = None

    def submit(self, job: Fields, detached: bool = True, python: str = "") -> None:
        """Submits a job.

        Args:
            job: its file.
            detached: by a process that ends at once; else by one that follows it.
            python: with which its programs run; empty for the platform's own.
        """
        file = self.platform.folder / f"{self.name}.yaml"
        file.write_text(json.dumps(self.platform.fitted(job, python)))
        words = ["run", str(file), "--engine", self.platform.engine]
        if detached:
            done = self.headrace(*words, "--detach")
            self.run_id = done.stdout.strip()
            return
        self._submitter = self.platform.begin(*words)
        (self.run_id,) = self.until(self._mine, "the run's folder")

    def _mine(self) -> list[str]:
        return [run_id for run_id in self.platform.runs() if run_id.startswith(f"{self.name}-")]

    def headrace(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of the user; it must succeed."""
        done = self.platform.headrace(*words)
        assert done.returncode == 0, f"headrace {' '.join(words)}: {done.stdout}{done.stderr}"
        return done

    @property
    def run(self) -> Run:
        """The record of the run as it is now."""
        return self.platform.run(self.run_id)

    def text(self) -> str:
        """What its programs have printed."""
        return "\n".join(line.text for line in self.run.logs())

    def until(self, condition, what: str, seconds: float = PATIENCE):
        """Waits until a condition holds and returns its value."""
        began = time.monotonic()
        while not (value := condition()):
            assert time.monotonic() - began < allowed(seconds), f"did not come within {seconds:g} s: {what}\n{self}"
            time.sleep(0.05)
        return value

    def said(self, words: str, count: int) -> None:
        """Waits until the programs have printed words so many times."""

        def look() -> bool:
            if self.run.finished:
                raise AssertionError(f"the run ended before it said {words!r}\n{self}")
            return self.text().count(words) >= count

        self.until(look, f"{count} times {words!r}")

    def strike(self) -> None:
        """From here on the time counts in which the run must end."""
        self._struck = time.monotonic()

    def go_on(self) -> None:
        """Lets the programs go on, which wait for a file."""
        for host in self.hosts():
            self.platform.touch(self.run, host, "all")

    def hosts(self) -> list[str]:
        """Names of the hosts."""
        return [host["name"] for host in json.loads(self.run.paths.plan.read_bytes())["hosts"]]

    def kill_submitter(self) -> None:
        """Kills the process that submitted the job and follows it."""
        assert self._submitter is not None
        self.platform.kill_submitter(self._submitter, self.run)
        self._submitter.communicate(timeout=30)

    def wait(self, seconds: float) -> int:
        """Waits for the end as a user does. Returns the exit code; the time that is allowed counts from `strike`."""
        rest = allowed(seconds) - (time.monotonic() - self._struck if self._struck else 0.0)
        done = self.platform.headrace("wait", self.run_id, "--timeout", f"{max(1.0, rest):.1f}", seconds=seconds + 60)
        assert done.returncode != 124, f"not over after {seconds:g} s\n{self}"
        self.until(lambda: self.run.finished, "the end in the record", 10)
        return done.returncode

    def result(self, name: str) -> bytes:
        """Returns a file that one of the hosts has written into its folder for output data."""
        found = [self.platform.result(self.run, host, name) for host in self.hosts()]
        (written,) = [content for content in found if content is not None]
        return written

    def assert_nothing_left(self) -> None:
        """Looks at the nodes, the scheduler and the cluster."""
        began = time.monotonic()
        while left := self.platform.left(self.run):
            assert time.monotonic() - began < allowed(self.platform.gone), "left behind:\n  " + "\n  ".join(left)
            time.sleep(0.1)

    def close(self) -> None:
        """Ends what the test has started itself."""
        if self._submitter is not None and self._submitter.poll() is None:
            self._submitter.kill()
            self._submitter.communicate()

    def __str__(self) -> str:
        """What there is to see of the run, for whoever must find out why a row does not hold."""
        with suppress(OSError):
            run = self.run
            logs = sorted(run.paths.engine.glob("*.log"))
            shown = [f"{log.name}: {log.read_text()[-3000:]}" for log in logs if log.stat().st_size]
            return "\n".join([f"{run.id}: {run.status.value}: {run.cause}", self.text()[-4000:], *shown])
        return self.run_id or "nothing was submitted"


def play_job(row: JobRow, platform: Platform, name: str, python: str = "") -> bytes:
    """Plays a job to its end. Returns the bytes with its losses, none where it has none."""
    play = Play(platform, name)
    play.submit(row.shape.document(name, platform.folder), python=python)
    code = play.wait(row.seconds)
    run = play.run
    assert code == 0, str(play)
    assert not run.degraded, str(play)
    _assert_said(play, row.said)
    play.assert_nothing_left()
    return play.result(row.losses) if row.losses else b""


def play_fault(row: FaultRow, platform: Platform, name: str) -> None:
    """Does a fault to a job, and checks how it ends and that nothing is left."""
    play = Play(platform, name)
    end = row.end_in(platform.engine)
    try:
        play.submit(row.shape.document(name, platform.folder), row.detached)
        row.fault(play)
        code = play.wait(end.within)
        seen, wanted = _seen(play, code, end), _wanted(end)
        assert seen == wanted, f"{seen}, expected {wanted}\n{play}"
        _assert_said(play, row.said)
        play.assert_nothing_left()
    finally:
        play.close()


def _seen(play: Play, code: int, end: End) -> dict[str, object]:
    run = play.run
    cause = run.cause
    seen: dict[str, object] = {"status": run.status, "exit code": code, "degraded": run.degraded}
    if cause is None:
        return {**seen, "kind": None}
    seen |= {"kind": cause.kind, "infrastructure": cause.infrastructure, "code": cause.exit_code}
    return {**seen, "signal": cause.signal, "host": cause.host if end.host else ""}


def _wanted(end: End) -> dict[str, object]:
    wanted: dict[str, object] = {"status": end.status, "exit code": end.exit_code, "degraded": end.degraded}
    if end.kind is None:
        return {**wanted, "kind": None}
    wanted |= {"kind": end.kind, "infrastructure": end.infrastructure, "code": end.code}
    return {**wanted, "signal": end.signal, "host": end.host}


def _assert_said(play: Play, said) -> None:
    text = play.text()
    wrong = {words: text.count(words) for words, count in said.items() if text.count(words) != count}
    assert not wrong, f"{said}: {wrong}\n{play}"
