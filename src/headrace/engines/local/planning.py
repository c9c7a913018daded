"""From a job to its launch plan on this machine. Pure."""

from __future__ import annotations

from headrace.engines.local.limits import HostLimits, Machine, assign_limits
from headrace.instance.launch import DistributionPlan, GroupPlan, HostPlan, LaunchPlan, Ports
from headrace.job import Job
from headrace.runs import RunPaths

START_TIMEOUT = 60.0
START_SECONDS_A_HOST = 2.0  # all hosts start on one machine, which may be small and busy


def make_plan(job: Job, paths: RunPaths, machine: Machine, python: str) -> LaunchPlan:
    """Returns the launch plan of a run.

    Args:
        job: the job.
        paths: the run's directory; it need not exist.
        machine: what it has for the job.
        python: interpreter for the user's programs.

    Raises:
        JobInvalid: a CPU or GPU that this machine does not have.
    """
    limits = assign_limits(job, machine)
    hosts = tuple(
        HostPlan(
            name=host,
            group=group,
            address=f"{job.local.address_prefix}.{number_of(host)}",
            base_dir=str(paths.host(host)),
            record_dir=str(paths.root),
            cpus=limits[host].cpus,
            gpus=limits[host].gpus,
            memory=limits[host].memory,
            cpu_weight=limits[host].cpu_weight,
        )
        for group, names in job.hosts.items()
        for host in names
    )
    return LaunchPlan(
        job_name=job.job_name,
        run_id=paths.id,
        entry_point=str(job.entry_point),
        groups=tuple(_group(job, group.instance_group_name, limits, len(machine.cpus)) for group in job.groups),
        hosts=hosts,
        leader=job.hosts[job.completion_groups[0]][0],
        distributions=_worlds(job),
        completion_groups=job.completion_groups,
        environment=dict(job.environment),
        ports=Ports(control=job.local.ports.control, feed=job.local.ports.feed, master=job.local.ports.master),
        stop_grace=job.local.stop_grace,
        start_timeout=max(START_TIMEOUT, START_SECONDS_A_HOST * len(hosts)),
        max_run=float(job.max_run),
        python=python,
    )


def _worlds(job: Job) -> tuple[DistributionPlan, ...]:
    return tuple(DistributionPlan(kind=world.kind, groups=world.instance_groups or ()) for world in job.distributions)


def number_of(host: str) -> int:
    """Returns n of ``algo-n``."""
    return int(host.rpartition("-")[2])


def _group(job: Job, name: str, limits: dict[str, HostLimits], machine: int) -> GroupPlan:
    group = next(group for group in job.groups if group.instance_group_name == name)
    hosts = job.hosts[name]
    entry_point = name in job.entry_point_groups
    ranks = job.processes_on(name) or int(entry_point)
    cores = min(len(limits[host].cpus) or machine for host in hosts)
    return GroupPlan(
        name=name,
        instance_type=group.instance_type,
        hosts=hosts,
        entry_point=entry_point,
        processes_per_host=job.processes_on(name),
        feed_executors=feed_executors(job.feed_workers, cores, ranks) if name in job.feed_groups else 0,
    )


def feed_executors(wanted: str | int, cores: int, ranks: int) -> int:
    """Returns the data worker processes of a host.

    Args:
        wanted: ``auto`` or a number.
        cores: CPUs of the host.
        ranks: user's programs on the host; data workers get what they leave.
    """
    if isinstance(wanted, int):
        return wanted
    return max(1, cores - ranks)
