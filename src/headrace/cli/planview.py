"""A launch plan as people read it: hosts with their programs and channels. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.agent.programs import feed_argv, programs_of
from headrace.instance.arguments import hyperparameter_arguments
from headrace.instance.launch import DistributionPlan, GroupPlan, HostPlan, LaunchPlan, Ports

if TYPE_CHECKING:
    from headrace.job import Job


class ProgramView(msgspec.Struct, frozen=True):
    """One program: its stream (rank or ``feed``), its local rank in torch.distributed, its command line."""

    stream: str
    local_rank: int | None
    argv: tuple[str, ...]


class HostView(msgspec.Struct, frozen=True):
    """One host. `cpus` empty means all of the machine; `channels` maps names to folders or URIs."""

    name: str
    group: str
    address: str
    cpus: tuple[int, ...]
    programs: tuple[ProgramView, ...]
    channels: dict[str, str]


class UnusedView(msgspec.Struct, frozen=True):
    """A value of the job that is accepted and has no effect here."""

    field: str
    why: str


class PlanView(msgspec.Struct, frozen=True):
    """What a job would run where. Nothing was started."""

    job_name: str
    entry_point: str
    leader: str
    groups: tuple[GroupPlan, ...]
    hosts: tuple[HostView, ...]
    distributions: tuple[DistributionPlan, ...]
    completion_groups: tuple[str, ...]
    ports: Ports
    environment: dict[str, str]
    stop_grace: float
    max_run: float
    without_effect: tuple[UnusedView, ...]


def view(job: Job, plan: LaunchPlan) -> PlanView:
    """Returns the plan of a job with the command lines and channels of every host."""
    return PlanView(
        job_name=plan.job_name,
        entry_point=plan.entry_point,
        leader=plan.leader,
        groups=plan.groups,
        hosts=tuple(_host(job, plan, host) for host in plan.hosts),
        distributions=plan.distributions,
        completion_groups=plan.completion_groups,
        ports=plan.ports,
        environment=plan.environment,
        stop_grace=plan.stop_grace,
        max_run=plan.max_run,
        without_effect=tuple(UnusedView(unused.field, unused.why) for unused in job.without_effect("local")),
    )


def _host(job: Job, plan: LaunchPlan, host: HostPlan) -> HostView:
    arguments = hyperparameter_arguments(job.hyperparameters_of(host.group))
    script = (plan.python or "python", job.entry_point_of(host.group), *arguments)
    if not job.entry_point_of(host.group):
        script = job.command
    programs = []
    for spec in programs_of(plan, host.name):
        # The last two arguments of the feed server are a descriptor that exists only once the agent runs.
        argv = (plan.python or "python", *feed_argv(plan, host.name, 0)[:-2]) if spec.is_feed else script
        programs.append(ProgramView(spec.stream, spec.local_rank, argv))
    channels = {
        name: channel.s3_data if channel.is_remote else str(channel.local_path(job.base_path))
        for name, channel in job.channels_of(host.group).items()
    }
    return HostView(host.name, host.group, host.address, host.cpus, tuple(programs), channels)


def brief(plan: LaunchPlan) -> list[str]:
    """Returns one line a group: its hosts, their CPUs and what they run."""
    lines = []
    for group in plan.groups:
        hosts = [plan.host(name) for name in group.hosts]
        names = hosts[0].name if len(hosts) == 1 else f"{hosts[0].name}..{hosts[-1].name}"
        cpus = sorted({cpu_set(host.cpus) for host in hosts})
        lines.append(
            f"{group.name}: {len(hosts)} x {group.instance_type} ({names}), CPUs {' '.join(cpus)}: {work(group)}"
        )
    return lines


def work(group: GroupPlan) -> str:
    """Returns what every host of a group runs, in words."""
    parts = []
    if group.entry_point:
        ranks = group.processes_per_host
        parts.append(f"{ranks} rank{'s' if ranks > 1 else ''}" if ranks else "entry point")
    if group.feed_executors:
        parts.append(f"{group.feed_executors} data worker{'s' if group.feed_executors > 1 else ''}")
    return " + ".join(parts) or "nothing"


def cpu_set(cpus: tuple[int, ...]) -> str:
    """Formats CPU ids as Linux does.

    >>> cpu_set((0, 1, 2, 5)), cpu_set(())
    ('0-2,5', 'all')
    """
    if not cpus:
        return "all"
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
