"""Makes the copies that lines wait for, and writes into the journal how far they have come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from headrace.grid.controller.line_jobs import LineJobs
from headrace.grid.copies.copy_action import CopyProgress
from headrace.grid.copies.copy_failure import CopyFailed, CopyFailure
from headrace.grid.copies.grid_copy import plan_grid_copy
from headrace.grid.journal.grid_record import CopyRecord, CopyState
from headrace.grid.journal.journal import Journal

PROGRESS_SECONDS = 2.0
"""Between two writes of how far a copy has come."""


class GridCopying:
    """Copies for one grid. Its methods may be called by several threads.

    Args:
        journal: of the grid.
        jobs: of its lines.
        owner: who pays: the grid, and when it was started.
        changed: is told of each copy that has changed.
    """

    def __init__(self, journal: Journal, jobs: LineJobs, owner: str, changed: Callable[[CopyRecord], object]) -> None:
        self._journal = journal
        self._jobs = jobs
        self._owner = owner
        self._changed = changed
        self._stop = threading.Event()

    def pause(self, paused: bool) -> None:
        """Ends all copies, or lets them begin again. What is there stays, and is not copied again."""
        if paused:
            self._stop.set()
        else:
            self._stop.clear()

    def copy(self, record: CopyRecord, tries: int, delay: float) -> None:
        """Makes a copy, as often as it says.

        Args:
            record: as the journal has it.
            tries: how often a failure that may pass is followed by another try.
            delay: seconds before that; they double.

        Raises:
            StorageError: the journal cannot be written.
        """
        record = msgspec.structs.replace(record, state=CopyState.RUNNING, started=record.started or time.time())
        self._note(record)
        for number in range(tries + 1):
            try:
                self._note(self._made(record))
                return
            except CopyFailed as error:
                if error.failure is CopyFailure.STOPPED and self._stop.is_set():
                    return  # it goes on when the grid does
                if error.passing and number < tries and not self._stop.wait(delay * 2**number):
                    continue
                if self._stop.is_set():
                    return
                failed = msgspec.structs.replace(
                    record, state=CopyState.FAILED, ended=time.time(), reason=error.message
                )
                self._note(failed)
                return

    def _made(self, record: CopyRecord) -> CopyRecord:
        """Makes a copy, and returns its record."""
        file, where = self._jobs.file, (record.place, record.source, record.region)
        with plan_grid_copy(*where, file.placement, self._jobs.template, file.in_regions, self._owner) as action:
            there = msgspec.structs.replace(record, target=action.target, bytes_total=action.bytes)
            told = [time.monotonic()]

            def progress(news: CopyProgress) -> None:
                if time.monotonic() - told[0] >= PROGRESS_SECONDS:
                    told[0] = time.monotonic()
                    self._note(msgspec.structs.replace(there, bytes_done=news.bytes_done))

            result = action.run(self._stop, progress)
        return msgspec.structs.replace(
            there, state=CopyState.DONE, bytes_done=result.bytes, ended=time.time(), cost=result.cost
        )

    def _note(self, record: CopyRecord) -> None:
        self._journal.copied(record)
        self._changed(record)
