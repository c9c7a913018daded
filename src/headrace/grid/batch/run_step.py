"""What a child of AWS Batch does: it starts the job of its line, or adopts the one that an earlier attempt has started.

Nothing tells an earlier attempt from none: the training job's name does, which follows from the line. So a child that
was killed at any instant and is started again, on this machine or another one, submits nothing twice.
"""

from __future__ import annotations

from headrace.engines.asking import AskEngine
from headrace.engines.remote_handle import RemoteHandle
from headrace.errors import EngineUnreachable, HeadraceError, ObjectMissing, StorageError
from headrace.grid.batch.read_bundle import BundledLine
from headrace.grid.controller.line_jobs import attempt_name
from headrace.grid.controller.start_attempt import start_or_adopt
from headrace.runs import Run, Status


def started_line(found: BundledLine, runs: int = 1) -> tuple[RemoteHandle, bool]:
    """Returns the run of a line, and whether it was there already. It may have ended.

    Args:
        found: the line.
        runs: how often it may run: one that has failed or was stopped is followed by the next one, whose name follows
            from the line and its number.

    Raises:
        NameInUse: a job that was not made of this line has its name.
        EngineUnreachable: AWS cannot be asked now.
        HeadraceError, OSError: it cannot be started.
    """
    for number in range(1, runs + 1):
        job = found.job.model_copy(update={"job_name": attempt_name(found.line.job_name, number)})
        started = start_or_adopt(job, found.line.engine)
        handle = RemoteHandle(started.run.paths)
        if number == runs or not (started.adopted and _ended_badly(handle)):
            return handle, started.adopted
    raise AssertionError("a line runs once at least")


def _ended_badly(handle: RemoteHandle) -> bool:
    run = Run(handle.paths, AskEngine())
    return run.finished and run.status is not Status.COMPLETED


def may_pass(error: HeadraceError) -> bool:
    """Tells whether what went wrong says nothing about the line: later, the same may work."""
    lost = [each for each in (error, error.__cause__) if not isinstance(each, ObjectMissing)]
    return any(isinstance(each, (EngineUnreachable, StorageError)) for each in lost)
