"""Stores the end of the record of a run that is over, where its supervisor could not: its bucket did not answer, Ctrl-C
ended the wait for it, or it was killed. It needs the run's directory, so it works on the machine of the run."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace import engines
from headrace.errors import HeadraceError
from headrace.hosting.supervision.helper_processes import BY_STOP, place_of_rest, store_rest
from headrace.hosting.supervision.instances import supervisor_environment
from headrace.own_runs import started_here
from headrace.runs import Run
from headrace.runs.store import ASK_ENGINE, is_copy, supervisor_alive

PAUSE = 0.5  # seconds between two questions to a platform


def store_late(run: Run, seconds: float, told: Callable[[str], None], unwanted: Callable[[], bool]) -> None:
    """Stores what is left of a run's record. If that fails, the run's state says so, as after the run.

    Args:
        run: the run; nothing is done while it goes on, its supervisor lives, when it is a copy or somebody else's.
            While its platform still has it, its own supervisor stores the rest there: that is waited for.
        seconds: at most so many.
        told: gets a sentence when there is something to store.
        unwanted: says whether to break off.

    Raises:
        OSError, msgspec.DecodeError: the run's header or the order of its record cannot be read.
    """
    deadline = time.monotonic() + seconds
    header = run.header
    answers = header.supervisor_pid != ASK_ENGINE and supervisor_alive(header)
    if is_copy(run.paths) or not started_here(run.paths.root) or answers or not run.over:
        return
    try:
        while header.supervisor_pid == ASK_ENGINE and place_of_rest(run.paths) and engines.alive(run):
            if unwanted() or time.monotonic() >= deadline:
                return
            time.sleep(PAUSE)
    except HeadraceError as error:  # it may store the rest itself, and the run has ended as its record says
        told(f"the engine {header.engine} cannot be asked whether it still stores the record: {error.message}")
        return
    place = place_of_rest(run.paths)
    if place:
        told(f"storing the end of the record in {place} (Ctrl-C ends this)")
        environment = supervisor_environment(run.id)
        store_rest(
            run.paths,
            max(0.0, deadline - time.monotonic()),
            lambda: BY_STOP if unwanted() else "",
            environment,
            once_more=True,
        )
