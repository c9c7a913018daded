"""One queue: the oldest job first, so many at once. A thread starts what is queued and notices what has ended."""

from __future__ import annotations

import logging
import threading
import time

import msgspec

from headrace.endpoint.training_jobs.job_runs import JobRuns
from headrace.endpoint.training_jobs.job_store import JobStore, Phase
from headrace.errors import HeadraceError

POLL_SECONDS = 0.1
_log = logging.getLogger(__name__)


class JobQueue:
    """The queue of an endpoint.

    Args:
        store: the jobs.
        runs: their runs.
        most: jobs that run at once.
    """

    def __init__(self, store: JobStore, runs: JobRuns, most: int) -> None:
        self._store = store
        self._runs = runs
        self._most = most
        self._changed = threading.Condition()
        self._news = False
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="job-queue")

    def start(self) -> None:
        """Takes up what an earlier endpoint left, and begins."""
        self._thread.start()

    def notice(self) -> None:
        """Says that there is a new job, or one less."""
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread. Jobs that run go on."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def stop_jobs(self, seconds: float) -> list[str]:
        """Stops all jobs that run and waits for their end. Called after `close`.

        Args:
            seconds: at most so long; then they are killed.

        Returns:
            The names of those that have not ended all the same.
        """
        deadline = time.monotonic() + seconds
        killed = False
        for job in self._store.in_phase(Phase.RUNNING):
            self._runs.stop(job)
        while left := [job for job in self._store.in_phase(Phase.RUNNING) if not self._runs.settle(job)]:
            if time.monotonic() > deadline:
                if killed:
                    return [job.name for job in left]
                killed, deadline = True, deadline + 30.0
                for job in left:
                    self._runs.stop(job, now=True)
            time.sleep(POLL_SECONDS)
        return []

    def _work(self) -> None:
        for job in self._store.in_phase(Phase.STARTING):
            self._runs.resume(job)
        while not self._stopping:
            busy = self._step()
            with self._changed:
                if not self._news and not self._stopping:
                    self._changed.wait(POLL_SECONDS if busy else None)
                self._news = False

    def _step(self) -> bool:
        """Looks at what runs and starts what may. Returns whether anything runs."""
        running = self._store.in_phase(Phase.RUNNING)
        going = 0
        for job in running:
            try:
                going += not self._runs.settle(job)
            except (HeadraceError, OSError, msgspec.DecodeError) as error:
                going += 1
                _log.warning("%s: its run cannot be looked at now: %s", job.name, error)
        self._runs.reap()
        queued = self._store.in_phase(Phase.QUEUED) if going < self._most else []
        for job in queued[: self._most - going]:
            self._runs.begin(job)
        return bool(running or queued)
