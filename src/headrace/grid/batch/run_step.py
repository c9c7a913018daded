"""What a child of AWS Batch does: it starts the job of its line, or adopts the one that an earlier attempt has started.

Nothing tells an earlier attempt from none: the training job's name does, which follows from the line. So a child that
was killed at any instant and is started again, on this machine or another one, submits nothing twice.
"""

from __future__ import annotations

from headrace.engines.remote_handle import RemoteHandle
from headrace.errors import EngineUnreachable, HeadraceError, ObjectMissing, StorageError
from headrace.grid.batch.read_bundle import BundledLine
from headrace.grid.controller.start_attempt import start_or_adopt


def started_line(found: BundledLine) -> tuple[RemoteHandle, bool]:
    """Returns the run of a line, and whether it was there already. It may have ended.

    Raises:
        NameInUse: a job that was not made of this line has its name.
        EngineUnreachable: AWS cannot be asked now.
        HeadraceError, OSError: it cannot be started.
    """
    started = start_or_adopt(found.job, found.line.engine)
    return RemoteHandle(started.run.paths), started.adopted


def may_pass(error: HeadraceError) -> bool:
    """Tells whether what went wrong says nothing about the line: later, the same may work."""
    lost = [each for each in (error, error.__cause__) if not isinstance(each, ObjectMissing)]
    return any(isinstance(each, (EngineUnreachable, StorageError)) for each in lost)
