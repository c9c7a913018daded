"""The processes that work for a run beside its agents: before, while and after its programs run.

    install          installs the requirements                       before the programs
    stage            fills the channels                              before the programs
    restore          brings earlier checkpoints                      before the programs
    serve_channels   serves Pipe and FastFile channels               while they run; reports that it is ready
    sync             checkpoints and intermediate output             while they run; reports that it is ready
    collect          model and output to where the job wants them    after them
    store_record     the record of the run to where the job wants it from the first moment on (see `record_storing`)

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
import os
import selectors
import signal
from collections.abc import Mapping

from headrace.child_python import module_command
from headrace.exit_status import exit_text
from headrace.processes.child_report import ChildReport, read_report
from headrace.processes.process_table import describe_exit
from headrace.processes.spawn import UTF8, spawn
from headrace.runs import Cause, CauseKind, RunPaths

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
