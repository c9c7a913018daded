"""What every helper of a run does around its work: it handles SIGTERM and reports a failure. See `helper_processes`.

A helper module ends with

    if __name__ == "__main__":
        sys.exit(work(main, "ClientError: Artifact upload failed", of_service=True))
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.child_python import ChildReport
from headrace.errors import HeadraceError
from headrace.runs import RunPaths

JOB_STATUS = "HEADRACE_JOB_STATUS"  # variable in which `collect` finds the job's status so far


class Stopped(BaseException):
    """SIGTERM came."""


def work(
    main: Callable[[RunPaths], None], failed: str = "", *, of_service: bool = False, stopped: str = "stopped"
) -> int:
    """Does the work for the run that the command line names. SIGTERM ends it with `Stopped`, once.

    Args:
        main: the work; gets the run's directory.
        failed: stands before the error in the report.
        of_service: `failed` is the text that SageMaker uses for such a failure.
        stopped: the error that is reported after SIGTERM.

    Returns:
        The exit code: 0, or 1; then a report on standard output and the last line of standard error say why.
    """
    signal.signal(signal.SIGTERM, _stop)
    try:
        main(RunPaths(Path(sys.argv[1])))
    except (HeadraceError, OSError, msgspec.DecodeError) as error:
        return report_failure(error, failed, of_service=of_service)
    except Stopped:
        return report_failure(Stopped(stopped), failed, of_service=of_service)
    return 0


def report_failure(error: BaseException, failed: str = "", *, of_service: bool = False) -> int:
    """Writes why this process failed, for its parent and into its log. Returns the exit code, 1."""
    line = error_line(error, failed)
    ChildReport(error=line, of_service=of_service).send()
    print(f"error: {line}", file=sys.stderr, flush=True)
    return 1


def error_line(error: BaseException, failed: str = "") -> str:
    """Returns an error with its hint in one line.

    >>> error_line(HeadraceError("no bucket\\n'b'", "make it"), "ClientError: Data download failed")
    "ClientError: Data download failed: no bucket 'b' (make it)"
    """
    if isinstance(error, HeadraceError):
        words = error.message + (f" ({error.hint})" if error.hint else "")
    else:
        words = str(error)
    return " ".join(f"{failed}{': ' if failed else ''}{words}".splitlines())


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is being stopped already
    raise Stopped
