"""A job for hosts that a platform gives: its plan, its checks, and the directory of its run. For engines of one's own.

    planned = plan_remote_job(job)         # or check_remote_job: what `plan` and `check` of an engine return
    plan_document(planned)                 # of `render`
    with new_run(job, "mine") as paths:    # of `start`; `headrace.engines.new_run`
        prepare_remote_run(planned, paths)

Nothing of the machine that submits is in the plan: no CPUs, no memory, no isolation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from headrace.engines.documents import Document
from headrace.engines.local.checked_job import check_tensorflow
from headrace.engines.local.host_limits import Machine
from headrace.engines.local.plan_hosts import make_plan
from headrace.engines.new_run import check_name
from headrace.engines.planning.engine_job import EngineJob, in_run
from headrace.engines.planning.plan_artefacts import check_checkpoint_folder, check_places
from headrace.engines.planning.plan_channels import check_channels, orders_of
from headrace.engines.planning.prepare_run import prepare
from headrace.instance.launch_plan import LaunchPlan, plan_text
from headrace.instance.paths import DEFAULT_BASE
from headrace.instance.s3 import AS_ENVIRONMENT, S3Access
from headrace.job import Job
from headrace.job.model.engine_options import LocalOptions, SlurmOptions
from headrace.job.model.kubernetes_options import KubernetesOptions
from headrace.job.model.sagemaker_options import SageMakerOptions
from headrace.job.problems.finding import Path
from headrace.job.rules.engine_rules import Unused
from headrace.runs import RunPaths, runs_dir


@dataclass(frozen=True)
class RemoteJob(EngineJob):
    """A job for a platform, as `plan` and `check` of an engine return it.

    Attributes:
        limits: what its hosts may use, in sentences; the engine says it with `dataclasses.replace`.
        without_effect: what of the job the engine does not use.
    """

    limits: tuple[str, ...] = ()
    without_effect: tuple[Unused, ...] = ()


def plan_remote_job(job: Job, address_of: Callable[[str], str] = str, python: str = "", engine: str = "") -> RemoteJob:
    """Returns a job with its launch plan. Starts and writes nothing.

    Args:
        job: the job.
        address_of: the address that the hosts of the job reach one of them by; its name (``algo-1``) by default.
        python: interpreter of the user's programs there; the one of this process if empty.
        engine: name of the engine, whose rules the job must keep; none are looked at if empty.

    Raises:
        JobInvalid: what the engine refuses, ports that do not exist.
        EngineRefused: a folder for checkpoints that hosts cannot have.
    """
    if engine:
        job.check_engine(engine)
    check_checkpoint_folder(job, False)
    plan = remote_plan(job, RunPaths(runs_dir() / job.job_name), python or sys.executable, address_of)
    return RemoteJob(job, plan, orders_of(job), without_effect=job.without_effect(engine) if engine else ())


def remote_plan(
    job: Job,
    paths: RunPaths,
    python: str,
    address_of: Callable[[str], str] = str,
    own_trees: bool = False,
    *,
    with_range: bool = False,
    options: KubernetesOptions | SageMakerOptions | SlurmOptions | None = None,
) -> LaunchPlan:
    """Returns the launch plan of a job on hosts that are no part of this machine. Pure.

    Args:
        job: the job.
        paths: the run's directory; it need not exist.
        python: interpreter of the user's programs; that of their agent if empty.
        address_of: see `plan_remote_job`.
        own_trees: whether every host has a file system of its own, and its tree in /opt/ml.
        with_range: whether data hosts may come and go; else the platform keeps, and bills, all of them.
        options: what the job says of the platform: how long its hosts may take to start, and to stop.
    """
    # The CPUs, memory and addresses of the local engine are those of another machine.
    elsewhere = job.engines.model_copy(update={"local": LocalOptions(limits="none")})
    plan = make_plan(job.model_copy(update={"engines": elsewhere}), paths, Machine(()), python)
    hosts = tuple(
        msgspec.structs.replace(
            host, address=address_of(host.name), base_dir=DEFAULT_BASE if own_trees else host.base_dir
        )
        for host in plan.hosts
    )
    plan = msgspec.structs.replace(plan, hosts=hosts, feed_range=plan.feed_range if with_range else None)
    if options is None:
        return plan
    timeout = max(plan.start_timeout, options.start_timeout)
    return msgspec.structs.replace(plan, stop_grace=options.stop_grace, start_timeout=timeout)


def ranks_beside_workers(job: Job) -> dict[str, int]:
    """Returns the groups whose data workers are as many as their ranks leave CPUs, with the ranks of a host."""
    fed = job.feed_groups if job.feed_workers == "auto" else ()
    return {name: job.processes_on(name) or int(name in job.entry_point_groups) for name in fed}


def check_remote_job(
    planned: EngineJob,
    elsewhere: Collection[Path] = (),
    storage: bool = True,
    programs: bool = True,
    access: S3Access = AS_ENVIRONMENT,
    engine: str = "",
) -> None:
    """Checks what can be known before a job is submitted: its name, files, channels, places, certificates.

    Args:
        planned: the job.
        elsewhere: places of the job that name something which is not on this machine.
        storage: whether places and channels are looked at; what is `elsewhere` never is.
        programs: whether the hosts' Python is that of this process, so that it can be asked for libraries.
        access: how S3 is reached.
        engine: name of the engine, where its runs are at a service that has names of its own.

    Raises:
        JobInvalid, EngineRefused: it could not run.
    """
    job = planned.job
    job.check_files(elsewhere)
    check_name(job.job_name, engine)
    if programs:
        check_tensorflow(job)
    if storage:
        check_places(job, [path[0] for path in elsewhere], access)
        names = {path[1] for path in elsewhere if path[0] == "inputs"}
        check_channels([order for order in planned.orders if order.name not in names], access)


def prepare_remote_run(planned: EngineJob, paths: RunPaths) -> None:
    """Fills the directory of a run: the job, its code, the plan, a tree for each host, the secret with mode 0600.

    Args:
        planned: the job.
        paths: the run's directory, which exists; all hosts see it under this path.

    Raises:
        UsageError, StorageError: code or requirements that cannot be used.
        OSError: something cannot be read or written.
    """
    prepare(planned.job, in_run(planned.plan, paths), planned.orders, paths)
    paths.engine.mkdir(exist_ok=True)


def plan_document(planned: EngineJob) -> Document:
    """Returns plan.json, as `render` gives it. It holds no secret."""
    return Document("plan.json", plan_text(planned.plan))
