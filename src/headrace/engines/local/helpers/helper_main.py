"""How a process that works for a run beside its agents ends; see `helper_processes` for what is asked of one.

if __name__ == "__main__":
    sys.exit(work(main, "ClientError: Artifact upload failed"))
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.errors import HeadraceError
from headrace.runs import RunPaths


class Stopped(BaseException):
    """SIGTERM came."""


def work(main: Callable[[RunPaths], None], failed: str = "", *, stopped: str = "stopped") -> int:
    """Does the work for the run that the command line names. SIGTERM ends it with `Stopped`, once.

    Args:
        main: the work; gets the run's directory.
        failed: what its failure is called, before the error.
        stopped: how it is called that SIGTERM came.

    Returns:
        The exit code: 0, or 1 when the last line of standard error says why.
    """
    signal.signal(signal.SIGTERM, _stop)
    try:
        main(RunPaths(Path(sys.argv[1])))
    except (HeadraceError, OSError, msgspec.DecodeError) as error:
        print(complaint(error, failed), file=sys.stderr)
        return 1
    except Stopped:
        print(complaint(Stopped(stopped), failed), file=sys.stderr)
        return 1
    return 0


def complaint(error: BaseException, failed: str = "") -> str:
    """Returns the line in which such a process says why it failed.

    >>> complaint(HeadraceError("no bucket\\n'b'", "make it"), "ClientError: Data download failed")
    "error: ClientError: Data download failed: no bucket 'b' (make it)"
    """
    if isinstance(error, HeadraceError):
        words = error.message + (f" ({error.hint})" if error.hint else "")
    else:
        words = str(error)
    return " ".join(f"error: {failed}{': ' if failed else ''}{words}".splitlines())


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is being stopped already
    raise Stopped
