"""`headrace advise --verify`: runs a candidate cluster on this machine and compares it with its prediction.

A prediction counts cores, so every host of the verification gets CPUs of its own: those of the run for the hosts that
train, whole free ones for the data hosts. A candidate that this machine has too few CPUs for is not run.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from headrace import engines
from headrace.catalog.instance_types import shape
from headrace.cli.follow import follow
from headrace.cli.views.run_screen import RunScreen
from headrace.cli.views.terminal import Terminal
from headrace.errors import HeadraceError, UsageError
from headrace.insight.advise.advisor import Advised, Verified, verified
from headrace.insight.advise.clusters import Candidate, by_cost, cores_per_vcpu
from headrace.insight.figures.run_files import planned_job
from headrace.job import Job
from headrace.job.model.field_types import format_cpu_set
from headrace.job.problems.finding import JobSource
from headrace.job.with_data_hosts import data_group_name, data_groups, with_data_hosts
from headrace.own_runs import require_started_here
from headrace.record_files import read_json
from headrace.runs import Run, Status

WHOLE = 0.05
"""How far from a whole number of CPUs a host's cores may be."""


def verify(run: Run, found: Advised, *, quiet: bool) -> Verified:
    """Runs the best candidate that this machine can run.

    Args:
        run: the run that was advised.
        found: the advice.
        quiet: show no progress.

    Raises:
        UsageError: none can be run here; nothing was started.
        HeadraceError: the verification failed.
    """
    job = _job(run)
    trainers = _trainer_cpus(run, job)
    if not found.measured.workers_told:
        raise UsageError(
            "--verify cannot run this job on data hosts: no data worker of headrace made its batches",
            hint="load a feed.pipeline with feed.DataLoader, and enable data_service.feed; "
            "see the page feed-workers of the docs",
        )
    free = sorted(os.sched_getaffinity(0) - {cpu for cpus in trainers.values() for cpu in cpus})
    chosen = _choose(found, free)
    cpu_sets = {group: format_cpu_set(cpus) for group, cpus in trainers.items()}
    if chosen.data_hosts:
        needed = chosen.data_hosts * (_cpus_of(found, chosen) or 0)
        cpu_sets[data_group_name(job)] = format_cpu_set(free[:needed])
    other = with_data_hosts(
        job,
        chosen.instance_type,
        chosen.data_hosts,
        job_name=f"{job.job_name[:56].rstrip('-')}-verify",
        source_dir=run.paths.code,
        cpu_sets=cpu_sets,
    )
    proof = verified(chosen, _follow(other, quiet=quiet))
    return msgspec.structs.replace(proof, unverified=unverified(found, chosen, len(free)))


def unverified(found: Advised, chosen: Candidate, free: int) -> str:
    """Returns a sentence that names the advised candidate if another one was run; empty when it was run.

    Args:
        found: the advice.
        chosen: the candidate that was run.
        free: CPUs of this machine that the hosts which train leave.
    """
    if found.best is None:
        return f"Nothing was advised: {chosen.title} is the fastest candidate that fits on this machine."
    if (found.best.instance_type, found.best.data_hosts) == (chosen.instance_type, chosen.data_hosts):
        return ""
    cpus = _cpus_of(found, found.best)
    needs = "no whole number of CPUs a host" if cpus is None else f"{found.best.data_hosts * cpus} CPUs"
    left = f"{free} {'is' if free == 1 else 'are'} free"
    return (
        f"Not verified: the advised {found.best.title}. It needs {needs} on this machine, where {left}; "
        f"{chosen.title} is the fastest candidate that fits."
    )


def _job(run: Run) -> Job:
    if run.header.engine != "local":
        raise UsageError(
            f"--verify runs on this machine, and {run.id} ran on the engine {run.header.engine!r}",
            hint="what was measured there says nothing about this machine",
        )
    if not run.header.base_path:
        raise UsageError(
            f"{run.id} does not say where its job file lay",
            hint="run the job once more, then verify that run",
        )
    require_started_here(run.paths.root, "--verify does not run its job")
    data = read_json(run.paths.job, msgspec.json.Decoder(dict[str, object]))
    return Job.from_source(data, JobSource(str(run.paths.job)), Path(run.header.base_path), look=False)


def _trainer_cpus(run: Run, job: Job) -> dict[str, tuple[int, ...]]:
    """Returns the CPUs of the groups that train, as they were in the run."""
    plan, _ = planned_job(run)
    beside, machine = set(data_groups(job)), os.sched_getaffinity(0)
    cpus = {host.name: host.cpus or machine for host in plan.hosts}
    return {
        group.name: tuple(sorted({cpu for host in group.hosts for cpu in cpus[host]}))
        for group in plan.groups
        if group.name not in beside
    }


def _cpus_of(found: Advised, candidate: Candidate) -> int | None:
    """Returns the CPUs that each data host of a candidate stands for here; None when that is no whole number."""
    known = shape(candidate.instance_type)
    assert known is not None
    cores = known.vcpus * cores_per_vcpu(found.measured, candidate.instance_type)
    whole = round(cores)
    return whole if whole >= 1 and abs(cores - whole) <= WHOLE else None


def _choose(found: Advised, free: list[int]) -> Candidate:
    """Returns the advised candidate, else the fastest that this machine has the CPUs for.

    Raises:
        UsageError: there is none.
    """

    def fits(one: Candidate) -> bool:
        cpus = _cpus_of(found, one) if one.data_hosts else 0
        return cpus is not None and one.data_hosts * cpus <= len(free)

    if found.best is not None and fits(found.best):
        return found.best
    possible = [one for one in found.candidates if one.data_hosts and fits(one)]
    if possible:
        return min(possible, key=lambda one: (one.step.value, by_cost(one)))
    wanted = found.best or next((one for one in found.candidates if one.data_hosts), None)
    title = "a data host" if wanted is None else wanted.title
    raise UsageError(
        f"--verify cannot run {title} here: the hosts that train leave {len(free)} CPUs of this machine free, and "
        "every data host needs CPUs of its own",
        hint="give the training groups fewer CPUs (engines.local.cpu_sets or cpu_shares), run, and verify that run; or "
        "try smaller --types",
    )


def _follow(job: Job, *, quiet: bool) -> Run:
    """Runs a job to its end. Ctrl-C stops it in order. Raises HeadraceError when it did not complete."""
    handle = follow(lambda: engines.start(job), RunScreen(Terminal.standard(err=True), quiet=quiet))
    if handle.status is not Status.COMPLETED:
        cause = f": {handle.cause}" if handle.cause is not None else ""
        raise HeadraceError(
            f"the verification {handle.id} ended as {handle.status.value}{cause}",
            hint=f"`headrace logs {handle.id}` shows what its programs said",
        )
    return handle.run
