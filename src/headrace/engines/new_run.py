"""Makes the directory of a run that is about to start, under a name that no other run has which goes on."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

import msgspec

from headrace.engines.asking import AskEngine
from headrace.errors import EngineRefused, NameInUse, StorageError
from headrace.held_file import alone_in
from headrace.instance.files import hint
from headrace.job import Job
from headrace.own_runs import started_here
from headrace.private_folders import make_folders
from headrace.runs import Run, RunPaths, create_run, runs_dir
from headrace.runs.store import is_copy, list_paths_of

AT_A_SERVICE = frozenset(("sagemaker",))
"""Engines whose service keeps the names of its jobs. `headrace serve` plays such a service: where it has the home of
whoever submits, its own run of a job lies beside the submitter's, and both have one name."""


def check_name(job_name: str, engine: str = "") -> None:
    """Checks that no job of that name runs.

    Args:
        job_name: the name.
        engine: that is to run it; runs at a service and others do not take names from each other.

    Raises:
        EngineRefused: one does.
    """
    at_service = engine in AT_A_SERVICE
    alive = AskEngine()
    for paths in list_paths_of(job_name):
        if not started_here(paths.root):
            continue
        run = Run(paths, alive)
        try:
            same = run.header.job_name == job_name and (run.header.engine in AT_A_SERVICE) is at_service
            running = same and not is_copy(paths) and not run.finished
        except (OSError, msgspec.DecodeError):  # no run that anybody could use
            continue
        if running:
            raise NameInUse(
                f"a job named {job_name!r} is already running: {run.id}",
                hint=f"stop it with `headrace stop {run.id}`, or choose another job_name",
            )


@contextlib.contextmanager
def new_run(job: Job, engine: str) -> Iterator[RunPaths]:
    """Makes the directory of a run. If the block that prepares and starts it fails, nothing of it is left.

    Args:
        job: the job.
        engine: name of the engine.

    Raises:
        EngineRefused: a run of that name goes on, or the directory cannot be made or filled.
    """
    try:
        make_folders(runs_dir())
        with alone_in(runs_dir()):  # no other start on this machine comes between the check and the new run
            check_name(job.job_name, engine)
            paths = create_run(job.job_name, engine, base_path=str(job.base_path))
    except OSError as error:
        raise _refused(f"no run can be made in {runs_dir()}", error) from error
    try:
        yield paths
    except BaseException as error:
        shutil.rmtree(paths.root, ignore_errors=True)
        if isinstance(error, OSError):
            raise _refused(f"the run cannot be prepared in {paths.root}", error) from error
        if isinstance(error, StorageError):
            raise EngineRefused(error.message, error.hint) from error
        raise


def _refused(what: str, error: OSError) -> EngineRefused:
    """The error of a runs directory that cannot be written."""
    advice = hint(error)
    elsewhere = "HEADRACE_HOME says where runs lie" if advice else "set HEADRACE_HOME to a folder that you may write to"
    name = (error.filename2 if advice else None) or error.filename  # of a copy: a disk that is full is that of the copy
    file = f" ({name})" if name and str(name) not in what else ""
    words = "; ".join(filter(None, [advice, elsewhere]))
    return EngineRefused(f"{what}: {error.strerror or error}{file}", hint=words)
