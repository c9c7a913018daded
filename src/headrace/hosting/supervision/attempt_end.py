"""How an attempt ends, as the supervisor of its leader sees it: one class for every engine.

The verdict is the coordinator's: it is in the record, which is followed, so that a look costs what is new and not what
there is. What the coordinator was asked for counts when it gives none. Processes of the attempt that are still there
when their time is over are killed.
"""

from __future__ import annotations

import time

from headrace.hosting.supervision.instances import Outcome, cause_of
from headrace.instance.lifeline import StopJob
from headrace.runs import Cause, RunPaths, Status
from headrace.runs.events import HostLost, HostRegistered, HostReleased, JobFinished
from headrace.runs.reader import EventFollower

AFTER_GRACE = 12.0  # for all agents to go, beyond the grace of a stop
NEVER = float("inf")


class AttemptEnd:
    """See the module. One object for all attempts of a run.

    Args:
        paths: the run's directory.
        stop_grace: seconds between SIGTERM and SIGKILL for programs, when a stop does not say.

    Attributes:
        asked: the first request to stop that the coordinator got in this attempt.
        registered: hosts from which the coordinator has heard in this attempt, at the last look.
        released: hosts that were released in this attempt, at the last look.
        lost: hosts that the coordinator has given up in this attempt, at the last look.
        kill_at: when what is left of the attempt is killed, on time.monotonic.
    """

    def __init__(self, paths: RunPaths, stop_grace: float) -> None:
        self._stop_grace = stop_grace
        self._follower = EventFollower(paths, lambda _: None)
        self.begin()

    def begin(self) -> None:
        """An attempt begins: verdicts of earlier ones do not count."""
        self._follower.poll()
        self._verdict: JobFinished | None = None
        self.registered: set[str] = set()
        self.asked: StopJob | None = None
        self.released: set[str] = set()
        self.lost: set[str] = set()
        self.kill_at = NEVER

    def look(self) -> JobFinished | None:
        """Returns the coordinator's verdict as the record has it now, None if it has not given one."""
        for event in self._follower.poll():
            if isinstance(event, JobFinished) and self._verdict is None:
                self._verdict = event
            if isinstance(event, HostRegistered):
                self.registered.add(event.host)
            if isinstance(event, HostReleased):
                self.released.add(event.host)
            if isinstance(event, HostLost):
                self.lost.add(event.host)
        return self._verdict

    def leader_ended(self, exit_code: int) -> None:
        """Takes the exit code of the leader's agent. 0 is the verdict too, where the disk was full for the record."""
        if self.look() is None and exit_code == 0:
            self._verdict = JobFinished(t=time.time(), status=Status.COMPLETED)

    @property
    def verdict(self) -> JobFinished | None:
        """The verdict at the last look."""
        return self._verdict

    def end_within(self, seconds: float) -> None:
        """Sets when the attempt must have ended at last; an earlier moment stays."""
        self.kill_at = min(self.kill_at, time.monotonic() + seconds)

    def ask(self, command: StopJob) -> bool:
        """Notes a request to stop. Returns whether it is the first one."""
        self.end_within((self._stop_grace if command.grace is None else command.grace) + AFTER_GRACE)
        first = self.asked is None
        self.asked = self.asked or command
        return first

    def outcome(self, otherwise: Cause) -> Outcome:
        """Returns how the attempt has ended: by the verdict, else as it was asked for, else failed.

        Args:
            otherwise: why it failed, when there is neither.
        """
        verdict = self.look()
        if verdict is not None:
            return verdict.status, verdict.cause
        if self.asked is not None:
            return (Status.FAILED if self.asked.failed else Status.STOPPED), cause_of(self.asked)
        return Status.FAILED, otherwise
