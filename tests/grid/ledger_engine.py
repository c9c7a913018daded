"""An engine whose platform is a file beside all grids: what was submitted and what ended stands there, whoever dies.

It is as forgetful as a platform may be: a job is known by its run only, and a job that is submitted twice runs twice.
A job with the hyperparameter `loss` logs it at steps 10, 20 and 40, and ends of itself when it is below 0.5.
`LEDGER` names the file; `FAULTS` a folder with a file a job name, each line of which is what becomes of a submission.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from headrace.engines.handle import RemoteHandle
from headrace.engines.new_run import new_run
from headrace.engines.planning.prepare_run import write_job
from headrace.engines.platform_news import platform_news
from headrace.errors import EngineRefused, EngineUnreachable
from headrace.job import Job
from headrace.runs import (
    Cause,
    CauseKind,
    MetricWriter,
    Run,
    RunPaths,
    Status,
    Stream,
    ValueSecond,
    give_to_engine,
)

instant: Callable[[str], None] = lambda _name: None  # noqa: E731  # set by tests

ENDS = {
    "spot": (Status.FAILED, Cause(CauseKind.PREEMPTED, "taken back", infrastructure=True)),
    "broken": (Status.FAILED, Cause(CauseKind.PROGRAM_EXITED, exit_code=3)),
}


class Refused(EngineRefused):
    """The platform has no instances."""

    code = "CapacityError"


def plan(job: Job) -> object:
    return SimpleNamespace(job=job)


def start(job: Job, detach: bool) -> RemoteHandle:
    assert detach
    fault = _fault(job.job_name)
    if fault == "throttle":
        raise EngineUnreachable("too many requests")
    if fault == "capacity":
        raise Refused("no instances")
    with new_run(job, "ledger") as paths:
        write_job(job, paths)
        instant("engine: before it is given")
        give_to_engine(paths)
        instant("engine: before it is submitted")
        _append(f"submitted {job.job_name} {paths.id} {fault}")
        instant("engine: after it was submitted")
        _log_loss(job, paths)
    return RemoteHandle(paths)


def refresh(run: Run) -> None:
    known = _known(run)
    if known is None:
        return
    status, cause = ENDS.get(known, (Status.COMPLETED, None))
    if (known == "slow" or float(_loss(run)) >= 0.5) and not _stopped(run):
        return
    if _stopped(run):
        status, cause = Status.STOPPED, Cause(CauseKind.STOPPED, "stopped by the user")
    with platform_news(run.paths) as news:
        if not news.finished:
            if not _ended(run):  # a run ends once on its platform, also when whoever asks is killed before it notes it
                _append(f"ended {run.header.job_name} {run.id} {status.value}")
            news.end(status, cause)


def _log_loss(job: Job, paths: RunPaths) -> None:
    if "loss" not in job.hyperparameters:
        return
    with MetricWriter(paths.metrics(Stream("algo", "algo-1", "0"))) as metrics:
        for step in (10, 20, 40):
            loss = float(job.hyperparameters["loss"])
            told = {"count": 1, "last": loss, "low": loss, "high": loss, "total": loss}
            metrics.write(ValueSecond(t=1000.0 + step, name="loss", stream="0", step=step, **told))


def _loss(run: Run) -> str:
    return str(json.loads((run.paths.root / "job.json").read_bytes()).get("hyperparameters", {}).get("loss", 0))


def alive(run: Run) -> bool:
    return _known(run) is not None and not _ended(run)


def stop(run: Run, now: bool = False) -> bool:
    _append(f"stopped {run.header.job_name} {run.id} -")
    return True


def _known(run: Run) -> str | None:
    """What the platform does with the job of a run; None when it has none."""
    return next((line.split()[3] for line in _lines() if line.split()[:3:2] == ["submitted", run.id]), None)


def _ended(run: Run) -> bool:
    return any(line.split()[:3:2] == ["ended", run.id] for line in _lines())


def _stopped(run: Run) -> bool:
    return any(line.split()[:3:2] == ["stopped", run.id] for line in _lines())


def _fault(job_name: str) -> str:
    path = Path(os.environ.get("FAULTS", "/nowhere")) / job_name
    return path.read_text().strip() if path.exists() else "well"


def _lines() -> list[str]:
    path = Path(os.environ["LEDGER"])
    return path.read_text().splitlines() if path.exists() else []


def _append(line: str) -> None:
    descriptor = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)
