"""The process that stores a run's record, as its supervisor sees it: it may die at any time, and the job goes on."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping

import msgspec

from headrace.child_python import module_command
from headrace.exit_status import exit_text, split_status
from headrace.hosting.helpers.store_record import LAST, NAME, NOW, order_of, state_file
from headrace.hosting.supervision.helper_processes import HelperProcess, is_wanted
from headrace.processes.child_report import read_report
from headrace.processes.spawn import UTF8, spawn
from headrace.runs import EventWriter, RunPaths
from headrace.runs.events import RecordNotStored
from headrace.runs.segment_writer import stored_to_end

BY_STOP = "by Ctrl-C"
AGAIN_SECONDS = 2.0  # at least, between two starts
STEP = 0.02

_log = logging.getLogger(__name__)


class RecordStoring:
    """Keeps the process running, where the job wants that its record is stored.

    Args:
        paths: the run.
        start: starts a helper process.
    """

    def __init__(self, paths: RunPaths, start: Callable[[str], HelperProcess]) -> None:
        self._start = start
        self._wanted = is_wanted(paths, NAME)
        self._helper: HelperProcess | None = None
        self._not_before = 0.0

    def look_after(self) -> None:
        """Starts it, or starts it again when it has ended."""
        now = time.monotonic()
        if not self._wanted or now < self._not_before or (self._helper is not None and not self._helper.ended):
            return
        if self._helper is not None:
            _log.warning("%s; it is started again", self._helper.failure())
        self._not_before = now + AGAIN_SECONDS
        try:
            self._helper = self._start(NAME)
        except OSError as error:
            _log.warning("storing the record: no process could be made: %s", error)


def place_of_rest(paths: RunPaths) -> str:
    """Returns where the end of the record of a run that has finished is still to be stored; empty when nothing is.

    Raises:
        OSError, msgspec.DecodeError: the order cannot be read.
    """
    return "" if not is_wanted(paths, NAME) or stored_to_end(state_file(paths)) else order_of(paths).place


def store_rest(
    paths: RunPaths,
    seconds: float,
    unwanted: Callable[[], str] = lambda: "",
    environment: Mapping[str, str] | None = None,
    *,
    once_more: bool = False,
    goes_on: bool = False,
) -> None:
    """Stores what is left of the record of a run that has finished. If that fails, an event of the run says so.

    Args:
        paths: the run; no other process writes to its record any more, or stores it.
        seconds: at most so many.
        unwanted: says by what it is broken off; empty to go on.
        environment: variables of the process; those of this one if None.
        once_more: an event of the run says before that it is tried again: the stored record says so, too.
        goes_on: the run has not finished: another process will write to its record.
    """
    if not is_wanted(paths, NAME):
        return
    if once_more:
        _write_event(paths, RecordNotStored(t=time.time(), uri=order_of(paths).place, reason=""))
    try:
        reason = _store_rest(
            paths, seconds, unwanted, dict(os.environ if environment is None else environment), NOW if goes_on else LAST
        )
        uri = order_of(paths).place if reason else ""
    except (OSError, msgspec.DecodeError) as error:
        reason, uri = str(error), ""
    if reason:
        _log.warning("the record is not stored to its end: %s", reason)
        _write_event(paths, RecordNotStored(t=time.time(), uri=uri, reason=reason))


def _write_event(paths: RunPaths, event: RecordNotStored) -> None:
    with EventWriter(paths.events(NAME)) as events:
        events.write(event)


def _store_rest(
    paths: RunPaths, seconds: float, unwanted: Callable[[], str], environment: dict[str, str], how: str
) -> str:
    """Returns why something is not stored, empty when all is."""
    with (paths.engine / f"{NAME}.log").open("ab") as log:
        process = spawn(
            module_command(f"headrace.hosting.helpers.{NAME}", str(paths.root), how, str(seconds), options=UTF8),
            env=environment,
            cwd=paths.root,
            tied=True,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    deadline = time.monotonic() + seconds
    with process.stdout as out:
        while process.poll() is None:
            late = time.monotonic() > deadline
            by = f"after {seconds:g} s without an answer" if late else unwanted()
            if by:
                process.kill()
                process.wait()
                return f"broken off {by}"
            time.sleep(STEP)
        report = read_report(out.readline())  # the only one, and short
    if process.returncode == 0:
        return ""
    return (report and report.error) or exit_text(*split_status(process.returncode))
