"""Plays one row of the fault table: `python fault_play.py ROW`, in a box where nothing else runs (see `fault_box`).

The player starts `headrace run` as a user does, waits for the row's moment by what the run's files say, does the row's
fault, and waits for the end. It is independent of all runs, cleans nothing up, and compares the machine before and
after. Prints one JSON object: what it saw, and in `wrong` all that is not as the row says.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import fault_machine
import fault_table
from fault_row import Row
from fault_s3 import Bucket
from run_places import flag, pid_here

from headrace.runs import Run, RunPaths, read_header
from headrace.runs.events import HostStarted, ProgramExited, ProgramStarted
from patience import allowed

PATIENCE = 40.0  # for a moment to come
OVER = 15.0  # beyond the row's limit, to see how late it is
SHOWN, SHOWN_OF_EACH = 20, 200
GROUP = "control group "
GONE = 1.0  # for the last process to go after the end has been seen


class Play:
    """One job, and what is done to it.

    Attributes:
        place: folder of everything that is not temporary.
        struck: when the fault was done.
        callers: processes that play users, the first is the one whose job it is.
        notes: what a row wants to have shown when it fails.
        closing: called at the very end, after the machine was looked at.
        bucket: what a row has for S3.
    """

    def __init__(self, row: Row, place: Path) -> None:
        self.row = row
        self.place = place
        self.struck = 0.0
        self.callers: list[subprocess.Popen[str]] = []
        self.environment = {**os.environ, "HEADRACE_HOME": str(place / "home")}
        self.notes: list[str] = []
        self.closing: list[Callable[[], None]] = []
        self.bucket: Bucket | None = None
        self._run: Run | None = None

    # --- the job -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Writes the job file and starts the caller."""
        code = self.place / "code"
        code.mkdir()
        for name, text in self.row.job.files.items():
            (code / name).write_text(text)
        job = self.row.job.document(self)
        (self.place / "job.yaml").write_text(job if isinstance(job, str) else json.dumps(job, ensure_ascii=False))
        for prepare in self.row.before:
            prepare(self)
        self.call()

    def call(self) -> subprocess.Popen[str]:
        """Starts a user who runs the job file."""
        output = (self.place / f"caller-{len(self.callers)}.log").open("w")
        with output:
            here = str(Path(__file__).with_name("fault_caller.py"))
            settings = json.dumps(self.row.job.settings)
            caller = subprocess.Popen(
                [sys.executable, here, settings, "run", str(self.place / "job.yaml")],
                env=self.environment,
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
            )
        self.callers.append(caller)
        return caller

    def said_to_user(self, number: int = 0) -> str:
        """Returns what a caller has printed."""
        return (self.place / f"caller-{number}.log").read_text(errors="replace")

    @property
    def run(self) -> Run:
        """The run; waits until it is there."""
        if self._run is None:
            runs = self.place / "home" / "runs"

            def look() -> RunPaths | None:
                for path in sorted(runs.glob("[!.]*")):  # others are still being made
                    with contextlib.suppress(OSError, ValueError):
                        if read_header(RunPaths(path)).supervisor_pid:
                            return RunPaths(path)
                return None

            self._run = Run(self.until(look, "the run's folder"))
        return self._run

    def events(self, kind: type) -> list:
        """Returns the run's events of a kind."""
        return [event for event in self.run.events() if isinstance(event, kind)]

    def text(self) -> str:
        """Returns what the programs have printed."""
        return "\n".join(line.text for line in self.run.logs())

    def flag(self, name: str) -> None:
        """Makes a file in the folder of every host in which its programs run."""
        flag(self.run, name)

    def until(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE):
        """Waits until a condition holds and returns its value."""
        began = time.monotonic()
        while not (value := condition()):
            if time.monotonic() - began > allowed(seconds):
                raise AssertionError(f"did not come within {seconds:g} s: {what}")
            time.sleep(0.01)
        return value

    def strike(self) -> None:
        """From here on the row's limit counts."""
        self.struck = time.monotonic()

    # --- processes -----------------------------------------------------------------------------------------------

    def agent(self, host: str) -> int:
        """Pid of a host's agent."""
        return self.until(
            lambda: next((each.pid for each in self.events(HostStarted) if each.host == host), None), f"agent of {host}"
        )

    def program(self, host: str, stream: str) -> int:
        """Pid of a program."""
        pid = self.until(
            lambda: next((e.pid for e in self.events(ProgramStarted) if (e.host, e.stream) == (host, stream)), None),
            f"program {stream} of {host}",
        )
        return pid_here(self.agent(host), pid)

    def found(self, words: str, without: str = "\0bootstrap") -> int:
        """Pid of the process whose command line has these words."""
        return self.until(
            lambda: next(
                (
                    pid
                    for pid, command in fault_machine.processes().items()
                    if words in command and without not in command and "processes.bootstrap" not in command
                ),
                None,
            ),
            f"process {words}",
        )

    @property
    def supervisor(self) -> int:
        """Pid of the supervisor; before there is one, the caller stands for it."""
        caller = self.callers[0].pid
        return self.until(
            lambda: next((pid for pid in [read_header(self.run.paths).supervisor_pid] if pid != caller), None),
            "the supervisor",
        )

    def exited(self, host: str) -> bool:
        """Tells whether a program of a host has ended."""
        return any(each.host == host for each in self.events(ProgramExited))

    # --- the end -------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Waits until all is over: the callers have ended, and so has the run."""
        limit = self.row.limit + OVER
        self.until(lambda: all(each.poll() is not None for each in self.callers), "the caller's end", limit)
        if self.row.starts:
            self.until(lambda: self.run.finished, "the run's end", limit)
            # A supervisor whose caller was killed records the run's end a moment before it ends.
            self.until(
                lambda: "hosting.supervision.supervisor" not in str(fault_machine.processes()),
                "its supervisor",
                limit,
            )


def play(row: Row, place: Path) -> dict[str, object]:
    """Plays a row. Returns what was seen."""
    place.mkdir(parents=True)
    stage = Play(row, place)
    for prepare in row.machine:
        prepare(stage)
    before = fault_machine.look(place)
    wrong: list[str] = []
    try:
        stage.begin()
        row.fault(stage)
        if not stage.struck:
            stage.strike()
        stage.end()
    except Exception:  # noqa: BLE001  (the boundary: it is reported)
        wrong.append(traceback.format_exc())
    seconds = time.monotonic() - (stage.struck or time.monotonic())
    left = _left(stage, before)
    wrong += [f"left behind: {each[:SHOWN_OF_EACH]}" for each in left[:SHOWN]]
    wrong += [f"and {len(left) - SHOWN} more left behind"] if len(left) > SHOWN else []
    code = stage.callers[0].poll() if stage.callers else None
    seen: dict[str, object] = {"row": row.name, "seconds": round(seconds, 2), "exit_code": code}
    seen["groups"] = [each.removeprefix(GROUP) for each in left if each.startswith(GROUP)]
    if seconds > allowed(row.limit):
        wrong.append(f"took {seconds:.1f} s, the limit is {row.limit:g} s")
    if code != row.exit_code:
        wrong.append(f"exit code {code}, expected {row.exit_code}")
    if row.starts:
        with contextlib.suppress(AssertionError):
            status, cause = stage.run.status, str(stage.run.cause or "")
            seen |= {"status": status.value, "cause": cause}
            if status is not row.status:
                wrong.append(f"status {status.value}, expected {row.status.value}")
            if not re.fullmatch(row.cause, cause):
                wrong.append(f"cause {cause!r}, expected {row.cause!r}")
    elif list((place / "home" / "runs").glob("*")):
        wrong.append("a run was made")
    if not wrong:
        for check in row.after:
            try:
                check(stage)
            except Exception:  # noqa: BLE001  (the boundary: it is reported)
                wrong.append(traceback.format_exc())
    seen["wrong"] = wrong
    if wrong:
        seen["shown"] = _shown(stage)
    return seen


def _left(stage: Play, before: set[str]) -> list[str]:
    ids = tuple(path.name for path in (stage.place / "home" / "runs").glob("*"))
    deadline = time.monotonic() + allowed(GONE)
    while (left := fault_machine.look(stage.place, ids) - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return sorted(left)


def _shown(stage: Play) -> list[str]:
    shown = [note[:SHOWN_OF_EACH] for note in stage.notes]
    for number in range(len(stage.callers)):
        shown.append(f"--- caller {number}\n{stage.said_to_user(number)[-3000:]}")
    for path in sorted((stage.place / "home" / "runs").rglob("*")):
        if path.is_file() and (path.parent.name in {"events", "engine"} or path.suffix == ".log"):
            with contextlib.suppress(OSError):
                shown.append(f"--- {path.relative_to(stage.place)}\n{path.read_text(errors='replace')[-3000:]}")
    return shown


def main() -> None:
    """Entry point."""
    # As a shell's: a caller that inherits an ignored SIGINT could not be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    row = fault_table.ROWS[sys.argv[1]]
    print(json.dumps(play(row, Path(os.environ["FAULT_PLACE"]))), flush=True)


if __name__ == "__main__":
    main()
