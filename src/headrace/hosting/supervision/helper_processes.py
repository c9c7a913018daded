"""The processes that work for a run beside its agents: before, while and after its programs run.

    install          installs the requirements                       before the programs
    stage            fills the channels                              before the programs
    restore          brings earlier checkpoints                      before the programs
    serve_channels   serves Pipe and FastFile channels               while they run; reports that it is ready
    sync             checkpoints and intermediate output             while they run; reports that it is ready
    collect          model and output to where the job wants them    after them
    store_record     the record of the run to where the job wants it from the first moment on (see `RecordStoring`)

Each is `python -m headrace.hosting.helpers.NAME RUN_DIR`, and runs only when `engine/NAME.json` is in the run's
directory: who prepares the run writes it, and with it says that there is something to do. It has the run's directory
as working directory and the machine's own namespaces, is tied to the supervisor (the kernel kills it when the
supervisor dies) and starts no process that is not tied to it in the same way. SIGTERM asks it to end in order. It ends
with 0, or with another code after a report (`child_report`) of what failed on standard output, and the same text as the
last line of standard error, which goes to `engine/NAME.log`. `collect` finds the job's status so far in
HEADRACE_JOB_STATUS.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping

import msgspec

from headrace.child_python import UTF8, ChildReport, module_command, read_report
from headrace.exit_status import exit_text, split_status
from headrace.hosting.helpers.store_record import LAST, NAME, NOW, order_of, state_file
from headrace.processes.process_table import describe_exit
from headrace.processes.spawn import spawn
from headrace.runs import Cause, CauseKind, EventWriter, RunPaths
from headrace.runs.events import RecordNotStored
from headrace.runs.segment_writer import stored_to_end

WORK = {
    "install": "installing the requirements",
    "stage": "filling the channels",
    "restore": "bringing earlier checkpoints",
    "serve_channels": "serving the channels",
    "sync": "keeping the checkpoints",
    "collect": "collecting model and output",
    "store_record": "storing the record",
}
_TAIL_BYTES = 1 << 16


def is_wanted(run: RunPaths, name: str) -> bool:
    """Tells whether a run has work for that process.

    Args:
        run: the run.
        name: one of `WORK`.
    """
    return (run.engine / f"{name}.json").is_file()


class HelperProcess:
    """One such process.

    Args:
        name: one of `WORK`.
        run: the run.
        selector: gets its standard output; the data of the key is a function to call.
        more: variables besides those of the supervisor.

    Attributes:
        name: as given.
        pid: its process.
        ready: it has said that it is ready.
        told: it was asked to end.
        exit_code, signal: one is set when it has ended.

    Raises:
        OSError: no process could be made.
    """

    def __init__(
        self, name: str, run: RunPaths, selector: selectors.BaseSelector, more: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.ready = False
        self.told = False
        self.exit_code: int | None = None
        self.signal: int | None = None
        self._selector = selector
        self._rest = b""
        self._report = ChildReport()  # the last one
        self._log = run.engine / f"{name}.log"
        self._out, out_end = os.pipe()
        try:
            with self._log.open("ab") as log:
                self._log_begins = log.tell()
                self._process = spawn(
                    module_command(f"headrace.hosting.helpers.{name}", str(run.root), options=UTF8),
                    env={**os.environ, **(more or {})},
                    cwd=run.root,
                    tied=True,
                    stdout=out_end,
                    stderr=log,
                )
        except OSError:
            os.close(self._out)
            raise
        finally:
            os.close(out_end)
        self.pid = self._process.pid
        os.set_blocking(self._out, False)
        selector.register(self._out, selectors.EVENT_READ, self._read)

    @property
    def ended(self) -> bool:
        """Whether its process is gone."""
        return self.exit_code is not None or self.signal is not None

    @property
    def failed(self) -> bool:
        """Whether it has ended, or has reported an error after which it ends; readers see the end of data later."""
        self._read()
        return self.ended or bool(self._report.error)

    def terminate(self) -> None:
        """Asks it to end."""
        self.told = True
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it."""
        self.told = True
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if not self.ended:  # not reaped yet, so the pid is still its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def finish(self, status: int) -> None:
        """Takes its wait status."""
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._read()
        self._close()
        self.exit_code, self.signal = describe_exit(status)

    def failure(self) -> Cause:
        """Returns why it failed: what it reported, else the last line of its log, else how it ended."""
        lines = self._last_lines()
        report = self._report
        last = report.error or (lines[-1] if lines else exit_text(self.exit_code, self.signal))
        if self.signal is not None:
            last = exit_text(None, self.signal)
        stands_alone = report.of_service and self.signal is None
        reason = last if stands_alone else f"{WORK[self.name]} failed: {last}"
        return Cause(
            CauseKind.HELPER_FAILED,
            reason,
            exit_code=self.exit_code,
            signal=self.signal,
            last_lines=tuple(lines),
            infrastructure=self.signal is not None,
        )

    def _last_lines(self) -> list[str]:
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_begins, size - _TAIL_BYTES))
            return [line for line in log.read().decode(errors="replace").splitlines() if line.strip()][-20:]
        return []

    def _read(self) -> None:
        while self._out >= 0:
            try:
                data = os.read(self._out, _TAIL_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._close()
                return
            *lines, rest = (self._rest + data).split(b"\n")
            self._rest = rest[-_TAIL_BYTES:]
            for report in filter(None, map(read_report, lines)):
                self.ready = self.ready or report.ready
                self._report = report

    def _close(self) -> None:
        if self._out >= 0:
            self._selector.unregister(self._out)
            os.close(self._out)
            self._out = -1


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
