"""What a child of AWS Batch does: it starts the job of its line, or adopts the one that an earlier attempt has started.

Nothing tells an earlier attempt from none: the training job's name does, which follows from the line. So a child that
was killed at any instant and is started again, on this machine or another one, submits nothing twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.engines.asking import AskEngine
from headrace.engines.handle import RemoteHandle
from headrace.errors import EngineUnreachable, HeadraceError, ObjectMissing, StorageError, UsageError
from headrace.grid.batch.grid_bundle import (
    GRID,
    JOBS,
    FrozenGrid,
    FrozenLine,
    bundle_tag,
    check_content,
    check_copied,
    copies_read_by,
    line_of,
    read_frozen_grid,
    read_job,
)
from headrace.grid.controller.attempt_runner import start_or_adopt
from headrace.grid.controller.line_jobs import attempt_name
from headrace.home import home_dir
from headrace.instance.storage import Store, join
from headrace.job import Job
from headrace.private_folders import make_folders, write_atomically
from headrace.runs import Run, Status


class BundledLine(NamedTuple):
    """A line, and the job that it runs.

    Attributes:
        line: as it was frozen.
        job: its files are there.
    """

    line: FrozenLine
    job: Job


def read_bundled_grid(bundle: str) -> FrozenGrid:
    """Returns the grid of a bundle, an ``s3://`` URI or a folder.

    Raises:
        UsageError: there is no such bundle.
        StorageError: it cannot be read now.
    """
    with Store() as store:
        return read_frozen_grid(_read(store, join(bundle, GRID)), join(bundle, GRID))


def read_bundled_line(bundle: str, index: int) -> BundledLine:
    """Returns a line of a bundle.

    Args:
        bundle: ``s3://`` URI or folder.
        index: of the line.

    Raises:
        UsageError: there is no such bundle, no line has the index, the bundle was changed, or a copy is not whole.
        StorageError: it cannot be read now.
        JobInvalid: the job is none for this version of headrace.
        OSError: nothing can be written below HEADRACE_HOME.
    """
    with Store() as store:
        found = _read(store, join(bundle, GRID))
        grid = read_frozen_grid(found, join(bundle, GRID))
        line = line_of(grid, index)
        _brought(store, bundle, grid, grid.array)  # a line that was changed there would not be what runs
        data = read_job(_brought(store, bundle, grid, JOBS), index)
        check_copied(copies_read_by(grid, line, data))
        folder = home_dir() / "bundles" / bundle_tag({GRID: found})
        for name in _files_of(grid, data):
            make_folders((folder / name).parent)
            write_atomically(folder / name, _brought(store, bundle, grid, name))
    return BundledLine(line, Job(base_path=folder, **data))


def _files_of(grid: FrozenGrid, data: dict[str, Any]) -> list[str]:
    """Returns the files of a bundle that a job names."""
    wheels = data["engines"]["sagemaker"].get("wheels")
    named = (data.get("source_dir"), wheels)
    return [name for name in grid.files if name.partition("/")[0] in named]


def _brought(store: Store, bundle: str, grid: FrozenGrid, name: str) -> bytes:
    place = join(bundle, name)
    return check_content(grid, name, _read(store, place), place)


def _read(store: Store, place: str) -> bytes:
    try:
        return store.read(place)
    except ObjectMissing as error:
        hint = "submit the grid again, or upload what was exported; `--bundle` is the folder in which grid.json is"
        raise UsageError(error.message, hint=hint) from None


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
