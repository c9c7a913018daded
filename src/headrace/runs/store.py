"""The runs on disk: making a run's directory, its header, finding a run by id or by job name.

A run's directory appears in one step, with its header in it. The header names the process that answers for the
run, by pid and start time: the one that made it, until the supervisor takes over with `adopt`. When that process is
gone and the run has no `run_finished`, its engine was killed. A run that a platform answers for, and no process of one
machine, is given to its engine with `give_to_engine`: then whoever wants to know asks the engine.
"""

from __future__ import annotations

import difflib
import os
import re
import secrets
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headrace._version import __version__
from headrace.errors import RunNotFound
from headrace.held_file import alone_in
from headrace.own_runs import enter_run
from headrace.private_folders import make_folders, write_atomically
from headrace.record_files import Time, read_json
from headrace.runs.run_paths import RunPaths, component, decode, runs_dir
from headrace.runs.tail import Damage

P = TypeVar("P")

_ID = re.compile(r"(?P<name>[^./\0][^/\0]*)-\d{8}-\d{6}-[0-9a-f]{4}")
_TIME_OF_JOB = re.compile(r"-\d{4}(-\d\d){5}-\d{3}$")  # the end of a job name that an estimator makes


RECORD_VERSION = 2
"""Of what this headrace writes and reads. In version 1, which was never released, a cause was a sentence."""


ASK_ENGINE = 0
"""`supervisor_pid` of a run for which no process of one machine answers: its engine knows whether it goes on."""

COPIED = "copied.json"
"""In the directory of a copy: where the record is, and how far the copy has come."""


class RunHeader(msgspec.Struct, frozen=True):
    """What is known of a run from its first moment: run.json.

    Attributes:
        run_id: id, which is also the name of the directory.
        job_name: TrainingJobName.
        engine: e.g. ``local``.
        created: seconds since the epoch, UTC.
        headrace_version: version that started it.
        supervisor_pid: process that answers for the run; `ASK_ENGINE` when its engine must be asked.
        supervisor_start_time: its start (`process_start_time`), because pids are used again.
        node: name of the machine where that pid is valid.
        version: of the record, see `RECORD_VERSION`.
        base_path: what relative paths of its job are relative to; empty when unknown.
    """

    run_id: str
    job_name: str
    engine: str
    created: Time
    headrace_version: str
    supervisor_pid: int
    supervisor_start_time: float
    node: str = ""
    version: int = 1
    base_path: str = ""


def process_start_time(pid: int) -> float | None:
    """Returns a number that tells this process from later ones with its pid; None if it does not live.

    On Linux these are the clock ticks since boot of /proc/<pid>/stat, which no change of the wall clock moves.
    A zombie does not live.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = text.rpartition(")")[2].split()
        return None if fields[0] in {"Z", "X"} else float(fields[19])
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    import psutil  # only where there is no /proc: the import costs every agent time

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return None


def is_copy(paths: RunPaths) -> bool:
    """Tells whether the directory of a run is a copy of its record: its processes are elsewhere."""
    return (paths.root / COPIED).is_file()


def supervisor_alive(header: RunHeader) -> bool:
    """Returns whether the process that answers for the run lives; True for one that cannot be seen from here: on
    another machine, or on a platform that must be asked.

    Args:
        header: the run's header.
    """
    if header.supervisor_pid == ASK_ENGINE:
        return True
    if header.node and header.node != socket.gethostname():
        return True
    return process_start_time(header.supervisor_pid) == header.supervisor_start_time


def create_run(
    job_name: str,
    engine: str = "local",
    runs: Path | None = None,
    created: float | None = None,
    base_path: str = "",
    run_id: str = "",
) -> RunPaths:
    """Makes a new run's directory (mode 0700) with its header, and enters it among this user's runs. The calling
    process answers for it until `adopt`.

    Args:
        job_name: TrainingJobName.
        engine: name of the engine.
        runs: directory of all runs; `runs_dir()` if None.
        created: seconds since the epoch; now, if None.
        base_path: what relative paths of the job are relative to.
        run_id: its id, of a run that is elsewhere already and gets a directory here.

    Returns:
        The paths of the new run, whose id is ``<job name>-<UTC yyyymmdd-hhmmss>-<4 hex>``.

    Raises:
        OSError: if the directory cannot be made; FileExistsError: there is a run of the id that is given.
    """
    parent = _parent(runs)
    now = time.time() if created is None else created
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    make_folders(parent)
    given = run_id
    while True:
        run_id = given or f"{component(job_name)}-{stamp}-{secrets.token_hex(2)}"
        staging = parent / f".{run_id}.{os.getpid()}"
        staging.mkdir(mode=0o700)
        try:
            header = RunHeader(
                run_id, job_name, engine, now, __version__, 0, 0.0, version=RECORD_VERSION, base_path=base_path
            )
            _write_header(staging, _signed(header))
            enter_run(staging)
            staging.rename(parent / run_id)
        except OSError:
            # A run's directory is never empty, so a rename to an id that is taken fails: try another.
            if (parent / run_id).exists():
                if given:
                    raise FileExistsError(f"there is a run {given} in {parent}") from None
                continue
            raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return RunPaths(parent / run_id)


def adopt(paths: RunPaths) -> RunHeader:
    """Makes the calling process the one that answers for the run, unless its engine does. Returns the new header.

    Raises:
        OSError, msgspec.DecodeError: if the header cannot be read or written.
    """
    with alone_in(paths.root):
        header = read_header(paths)
        if header.supervisor_pid != ASK_ENGINE:
            header = _signed(header)
            _write_header(paths.root, header)
    return header


def give_to_engine(paths: RunPaths) -> RunHeader:
    """Makes the run's engine the one that is asked whether the run goes on. Returns the new header.

    Raises:
        OSError, msgspec.DecodeError: if the header cannot be read or written.
    """
    with alone_in(paths.root):
        asked = msgspec.structs.replace(
            read_header(paths), supervisor_pid=ASK_ENGINE, supervisor_start_time=0.0, node=""
        )
        _write_header(paths.root, asked)
    return asked


def _signed(header: RunHeader) -> RunHeader:
    return msgspec.structs.replace(
        header,
        supervisor_pid=os.getpid(),
        supervisor_start_time=process_start_time(os.getpid()) or 0.0,
        node=socket.gethostname(),
    )


def _write_header(directory: Path, header: RunHeader) -> None:
    write_atomically(directory / "run.json", msgspec.json.format(msgspec.json.encode(header)) + b"\n")


def read_header(paths: RunPaths) -> RunHeader:
    """Reads run.json.

    Raises:
        OSError, msgspec.DecodeError: if it is missing or damaged.
    """
    return read_json(paths.header, _headers)


def read_plan(paths: RunPaths, part: type[P]) -> P:
    """Reads plan.json, or those fields of it that a type has.

    Raises:
        OSError, msgspec.DecodeError: if it is missing or damaged.
    """
    return read_json(paths.plan, _plan_decoder(part))


# msgspec resolves a type when its first decoder is made; two threads that do it at once crash the interpreter.
_headers = msgspec.json.Decoder(RunHeader)
_plans: dict[object, msgspec.json.Decoder[Any]] = {}
_plans_lock = threading.Lock()


def _plan_decoder(part: type[P]) -> msgspec.json.Decoder[P]:
    with _plans_lock:
        if part not in _plans:
            _plans[part] = msgspec.json.Decoder(part)
        return _plans[part]


def list_paths(runs: Path | None = None) -> list[RunPaths]:
    """Returns all runs, oldest first. A directory without a readable header is no run."""
    parent = _parent(runs)
    found: list[tuple[float, str]] = []
    for name in _names(parent):
        try:
            found.append((read_header(RunPaths(parent / name)).created, name))
        except (OSError, msgspec.DecodeError):
            continue
    return [RunPaths(parent / name) for _, name in sorted(found)]


def list_paths_of(job_name: str, runs: Path | None = None) -> list[RunPaths]:
    """Returns the runs of a job, oldest first. The headers of other jobs' runs are not read."""
    parent = _parent(runs)
    mine = [parent / name for name in _names(parent) if job_name_of(name) == job_name]
    found = [path for path in mine if RunPaths(path).header.is_file()]
    return [RunPaths(path) for path in sorted(found, key=_created)]


def unreadable_headers(runs: Path | None = None) -> list[Damage]:
    """Returns the directories among the runs whose header is missing or damaged."""
    parent = _parent(runs)
    found = []
    for name in _names(parent):
        paths = RunPaths(parent / name)
        try:
            read_header(paths)
        except (OSError, msgspec.DecodeError) as error:
            why = "is missing: its folder is no run, and may be removed"
            if not isinstance(error, FileNotFoundError):
                why = f"cannot be read: {(isinstance(error, OSError) and error.strerror) or error}"
            if paths.root.is_dir():
                found.append(Damage(str(paths.header), 0, why))
    return found


def run_of_id(run_id: str, runs: Path | None = None) -> RunPaths | None:
    """Returns the run of that id; None if there is none. It looks at no other run."""
    paths = RunPaths(_parent(runs) / run_id)
    return paths if _ID.fullmatch(run_id) and os.path.isfile(paths.header) else None


def find_run(name_or_id: str, runs: Path | None = None) -> RunPaths:
    """Returns the run of that id, else the newest run of the job of that name, else of a `base_job_name`.

    Raises:
        RunNotFound: if there is none; the hint holds the nearest names.
    """
    parent = _parent(runs)
    if paths := run_of_id(name_or_id, runs):
        return paths
    ids = [name for name in _names(parent) if run_of_id(name, runs)]
    mine = [run_id for run_id in ids if job_name_of(run_id) == name_or_id]
    mine = mine or [run_id for run_id in ids if _base_job_name(run_id) == name_or_id]
    newest = max(mine, key=lambda run_id: _created(parent / run_id), default=None)
    if newest is None:
        raise RunNotFound(f"no run {name_or_id!r} in {parent}", hint=_nearest(name_or_id, ids))
    return RunPaths(parent / newest)


def _base_job_name(run_id: str) -> str:
    """Returns the job name of a run without the time that an estimator adds to it."""
    return _TIME_OF_JOB.sub("", job_name_of(run_id))


def _parent(runs: Path | None) -> Path:
    """Returns the directory of all runs, absolute: the processes of a run have other working directories."""
    return (runs_dir() if runs is None else Path(runs)).absolute()


def _names(parent: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(parent) if not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _created(directory: Path) -> tuple[str, float]:
    """Sorts runs of one job by time: the id tells seconds, the header tells more."""
    stamp = directory.name[-20:-5]
    try:
        return stamp, read_header(RunPaths(directory)).created
    except (OSError, msgspec.DecodeError):
        return stamp, 0.0


def _nearest(name: str, ids: list[str]) -> str:
    if not ids:
        return "no job has run yet: start one with `headrace run JOB`"
    newest = sorted(ids, key=lambda run_id: run_id[-20:], reverse=True)
    jobs = list(dict.fromkeys(job_name_of(run_id) for run_id in newest))
    near = difflib.get_close_matches(name, jobs + newest, n=3, cutoff=0.5)
    if near:
        return "did you mean " + " or ".join(near) + "?"
    return "the newest runs are " + ", ".join(newest[:3])


def job_name_of(run_id: str) -> str:
    """Returns the job name inside a run id, or the id itself when it has no such form."""
    match = _ID.fullmatch(run_id)
    return decode(match["name"]) if match else run_id
