"""The engine's face. It starts a run: checks first, creates afterwards, then hands over to the supervisor."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.engines.local.artefacts import check_artefacts
from headrace.engines.local.certifying import check_certificates
from headrace.engines.local.channel_area import sweep_channels
from headrace.engines.local.channels import check_channels, check_mounts
from headrace.engines.local.checks import check_name, check_ports
from headrace.engines.local.handle import Handle, stop_run
from headrace.engines.local.helper_processes import FOLDER
from headrace.engines.local.isolation.probing import choose, network_here
from headrace.engines.local.limits_cgroup import RECORD, find_places, sweep
from headrace.engines.local.limits_machine import look_at_machine
from headrace.engines.local.limits_words import explain_limits
from headrace.engines.local.planning import make_plan
from headrace.engines.local.preparing import prepare
from headrace.errors import EngineRefused, StorageError
from headrace.instance.launch import NAMESPACE, LaunchPlan
from headrace.instance.lifeline import RUN_ID
from headrace.job import Job
from headrace.runs import Run, RunPaths, create_run, read_header, runs_dir

SUPERVISOR = "headrace.engines.local.supervisor"
SUPERVISOR_SECONDS = 30.0


def plan(job: Job) -> LaunchPlan:
    """Returns what would run where.

    Raises:
        JobInvalid: what this engine or this machine does not have, such as a CPU.
        EngineRefused: FastFile channels where nothing can be mounted.
    """
    job.check_engine("local")
    check_mounts(job)
    return _plan(job, RunPaths(runs_dir() / job.job_name))


def limits(job: Job) -> tuple[str, ...]:
    """Returns what the job's instances may use of this machine, and what cannot be limited here, in sentences."""
    return explain_limits(job, *look_at_machine(job))


def check(job: Job) -> None:
    """Checks everything that `start` checks. Raises JobInvalid or EngineRefused."""
    job.check_engine("local")
    job.check_files()
    check_name(job.job_name)
    planned = plan(job)
    check_certificates(planned)
    check_ports(planned)
    check_artefacts(job, planned.isolation.level == NAMESPACE)
    check_channels(job)


def start(job: Job, detach: bool = False) -> Handle:
    """Starts a run, which lives without this process when it is detached.

    Raises:
        JobInvalid, EngineRefused: then nothing is left.
    """
    check(job)
    sweep(find_places(), runs_dir().glob(f"*/{RECORD}"))  # of runs whose supervisor and caller were killed together
    sweep_channels()
    with _name_taken(job.job_name):
        paths = create_run(job.job_name, "local")
    try:
        prepare(job, _plan(job, paths), paths)
        return _start_supervisor(paths, detach)
    except BaseException as error:
        shutil.rmtree(paths.root, ignore_errors=True)
        if isinstance(error, OSError):
            raise EngineRefused(
                f"the run cannot be prepared in {paths.root}: {error}",
                hint="is the disk full, or $HEADRACE_HOME wrong?",
            ) from error
        if isinstance(error, StorageError):
            raise EngineRefused(error.message, error.hint) from error
        raise


def stop(run: Run, now: bool = False) -> bool:
    """Asks a run to stop. Returns whether it was still running."""
    return stop_run(run.paths, now)


def _plan(job: Job, paths: RunPaths) -> LaunchPlan:
    isolation, network = choose(job.local.isolation, bandwidth=bool(job.local.network)), network_here()
    machine, _ = look_at_machine(job)
    return make_plan(job, paths, machine, sys.executable, isolation, network)


@contextlib.contextmanager
def _name_taken(job_name: str) -> Iterator[None]:
    """Checks the name once more, with no other start on this machine between the check and the new run."""
    try:
        runs_dir().mkdir(parents=True, exist_ok=True)
        directory = os.open(runs_dir(), os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise EngineRefused(
            f"no runs can be kept in {runs_dir()}: {error.strerror}", hint="set HEADRACE_HOME"
        ) from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        check_name(job_name)
        yield
    finally:
        os.close(directory)


def _start_supervisor(paths: RunPaths, detach: bool) -> Handle:
    logs = paths.root / FOLDER
    logs.mkdir(exist_ok=True)
    reading, writing = os.pipe()
    try:
        with (logs / "supervisor.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", SUPERVISOR, str(paths.root), "0" if detach else str(os.getpid())],
                stdin=reading,
                stdout=log,
                stderr=log,
                env=supervisor_environment(paths.id),
                cwd=paths.root,  # so that no module of the user's directory is imported in its place
                start_new_session=True,  # a signal to the caller's terminal is none to the supervisor
            )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    try:
        _await_supervisor(paths, process)
    except BaseException:
        os.close(writing)
        process.kill()
        process.wait()
        raise
    if detach:
        os.close(writing)
        return Handle(paths, process, None)
    return Handle(paths, process, writing)


def _await_supervisor(paths: RunPaths, process: subprocess.Popen[bytes]) -> None:
    """Waits until the supervisor answers for the run, so that from here on others can see and stop it."""
    deadline = time.monotonic() + SUPERVISOR_SECONDS
    while read_header(paths).supervisor_pid != process.pid:
        if process.poll() is not None or time.monotonic() > deadline:
            words = (paths.root / FOLDER / "supervisor.log").read_text(errors="replace").strip()
            raise EngineRefused(f"the engine's supervisor did not start: {words or 'it is silent'}")
        time.sleep(0.005)


def supervisor_environment(run_id: str) -> dict[str, str]:
    """Returns the variables of supervisor and agents: those of the caller, and how headrace is found from elsewhere."""
    package = str(Path(__file__).resolve().parents[3])
    search = [str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if package not in search:
        search.insert(0, package)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(search), RUN_ID: run_id}
