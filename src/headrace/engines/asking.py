"""Asks the engine of a run whether the run goes on, and brings what the platform knows into the run's record.

A run that a process of this machine answers for needs none of this. Of a run that a platform answers for (its header
says `ASK_ENGINE`) the record alone cannot tell whether it is queued, runs or is gone. Who looks at such a run therefore
looks through an `AskEngine`: it calls the engine's `refresh` and `alive` first, and again while it follows.

Of a copy of a record (`headrace fetch`) the engine is not asked: in its place the copy is brought up to date, as long
as it is not complete, and the run goes on until its record says that it has ended.

A platform that does not answer, or an engine that fails, says nothing about the run: it is told, and the run counts as
going on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace import engines
from headrace.errors import HeadraceError
from headrace.instance.storage import Store
from headrace.own_runs import require_started_here
from headrace.runs import Run
from headrace.runs.segment_reader import RecordCopy, read_copied
from headrace.runs.store import ASK_ENGINE, is_copy, supervisor_alive

_log = logging.getLogger(__name__)

SECONDS = 1.5  # between two questions about one run
COPY_TIMEOUT = 5.0  # for an answer of the store of a copy's record


@dataclass
class _Answer:
    lock: threading.Lock = field(default_factory=threading.Lock)
    alive: bool = True
    over: bool = False
    due: float = 0.0
    trouble: str = ""


class AskEngine:
    """Says of runs whether what answers for them still does: the `alive` of a `headrace.runs.Run`.

    Every engine is asked about a run once at first, then at most every `seconds`, and never about a run whose record
    holds its end. One may serve many runs and threads.

    Args:
        told: gets a sentence when an engine cannot be asked, once for each sentence in a row.
        seconds: between two questions about one run.
    """

    def __init__(self, told: Callable[[str], None] = _log.warning, seconds: float = SECONDS) -> None:
        self._told = told
        self._seconds = seconds
        self._answers: dict[str, _Answer] = {}
        self._store = Store(COPY_TIMEOUT, attempts=1)  # opens no connection before it is used

    def __call__(self, run: Run) -> bool:
        """Brings the news of a run into its record, when it is time. Returns whether the run goes on.

        Raises:
            OSError, msgspec.DecodeError: its header cannot be read.
        """
        header = run.header
        copy = is_copy(run.paths)
        if not copy and header.supervisor_pid != ASK_ENGINE:
            return supervisor_alive(header)
        answer = self._answers.setdefault(str(run.paths.root), _Answer())
        with answer.lock:
            if not answer.over and time.monotonic() >= answer.due:
                self._ask(run, "" if copy else header.engine, answer)
                answer.due = time.monotonic() + self._seconds  # after the answer: it may take its time
            return answer.alive

    def _ask(self, run: Run, engine: str, answer: _Answer) -> None:
        """Asks an engine, or brings a copy up to date when no engine is named."""
        trouble = ""
        try:
            if not engine:
                answer.over = self._update(run)
            else:
                answer.over = run.over
                if not answer.over:
                    engines.refresh(run)
                    answer.alive = engines.alive(run)
        except Exception as error:  # noqa: BLE001  (the boundary to anybody's engine: other runs are not its concern)
            whom = f"the engine {engine} cannot be asked" if engine else "the copy cannot be brought up to date"
            why, hint = str(error) if isinstance(error, OSError) else repr(error), ""
            if isinstance(error, HeadraceError):
                why, hint = error.message, f"\nhint: {error.hint}" if error.hint else ""
            trouble = f"{run.id}: {whom}: {why}. Shown is what its record says.{hint}"
        if trouble and trouble != answer.trouble:
            self._told(trouble)
        answer.trouble = trouble

    def _update(self, run: Run) -> bool:
        """Brings a copy up to date. Returns whether it is complete."""
        copied = read_copied(run.paths)
        if copied is None or copied.complete:
            return True
        require_started_here(run.paths.root, "nothing is fetched for somebody else's copy")
        return RecordCopy(self._store, run.paths).update().complete
