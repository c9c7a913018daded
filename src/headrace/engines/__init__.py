"""Where instances come from: an engine checks and plans a job, starts an agent on each, and brings the run home.

    plan(job)     what would run where, and what it may use of the machine; starts nothing
    check(job)    raises what would stop `start`, else returns what it goes on with; starts nothing
    start(job)    starts a run and returns its `Handle`; the run may be detached from the caller
    stop(run)     stops a run, whichever process started it

Each engine is a package of its own with these functions. It is found by entry point (see
`headrace.job.find_engine`) and imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from headrace.engines.local.checked_job import CheckedJob
    from headrace.engines.local.supervision.local_run import Handle
    from headrace.job import Job
    from headrace.runs import Run

__all__ = ["check", "plan", "start", "stop"]


class _Engine(Protocol):
    def plan(self, job: Job) -> CheckedJob: ...

    def check(self, job: Job) -> CheckedJob: ...

    def start(self, job: Job, detach: bool) -> Handle: ...

    def stop(self, run: Run, now: bool) -> bool: ...


def plan(job: Job, engine: str = "local") -> CheckedJob:
    """Returns the job with its launch plan and its channels; whether it could start now is not checked.

    Raises:
        EngineRefused: no engine of that name.
        JobInvalid: the job asks for something that this machine does not have.
    """
    return _engine(engine).plan(job)


def check(job: Job, engine: str = "local") -> CheckedJob:
    """Checks that a job could start here and now.

    Returns:
        What `plan` returns, as `start` would use it.

    Raises:
        JobInvalid: a file or CPU that is not there.
        EngineRefused: a port in use, a job of that name that runs, no engine of that name.
    """
    return _engine(engine).check(job)


def start(job: Job, engine: str = "local", detach: bool = False) -> Handle:
    """Starts a run of the job.

    Args:
        job: the job.
        engine: name of the engine.
        detach: the run lives without this process. Else it is stopped when this process dies, however that happens.

    Raises:
        JobInvalid, EngineRefused: as `check` does; nothing was started, nothing is left.
    """
    return _engine(engine).start(job, detach)


def stop(run: Run, now: bool = False) -> bool:
    """Asks a run to stop, whichever process started it.

    Args:
        run: the run.
        now: kill its programs instead of asking them.

    Returns:
        Whether it was still running.
    """
    return _engine(run.header.engine).stop(run, now)


def _engine(name: str) -> _Engine:
    # Here, because the programs that make namespaces import this package too, and run without any library.
    from headrace.job.find_engine import find_engine

    return cast(_Engine, find_engine(name))
