"""A launch plan as people read it: hosts with their programs and channels. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.agent.programs import ProgramSpec, feed_argv, program_argv, programs_of
from headrace.instance.arguments import hyperparameter_arguments
from headrace.instance.launch import DistributionPlan, GroupPlan, HostPlan, Isolation, LaunchPlan, Ports
from headrace.instance.torchrun import torchrun_command

if TYPE_CHECKING:
    from headrace.job import Job


class ProgramView(msgspec.Struct, frozen=True):
    """One program: its stream (rank or ``feed``), its local rank in torch.distributed, its command line."""

    stream: str
    local_rank: int | None
    argv: tuple[str, ...]


class HostView(msgspec.Struct, frozen=True):
    """One host.

    `cpus` empty means all of the machine; `limits` are its other limits in words, `memory` the bytes that it may use
    (0: no limit), `gpus` the GPU ids that its programs see (None: all); `channels` maps names to places.
    """

    name: str
    group: str
    address: str
    cpus: tuple[int, ...]
    limits: str
    memory: int
    gpus: tuple[int, ...] | None
    programs: tuple[ProgramView, ...]
    channels: dict[str, str]


class UnusedView(msgspec.Struct, frozen=True):
    """A value of the job that is accepted and has no effect here."""

    field: str
    why: str


class PlanView(msgspec.Struct, frozen=True):
    """What a job would run where. Nothing was started. `limits` says in sentences how the machine is divided."""

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
    isolation: Isolation
    without_effect: tuple[UnusedView, ...]
    limits: tuple[str, ...] = ()


def view(job: Job, plan: LaunchPlan, limits: tuple[str, ...] = ()) -> PlanView:
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
        isolation=plan.isolation,
        limits=limits,
        without_effect=tuple(UnusedView(unused.field, unused.why) for unused in job.without_effect("local")),
    )


def _host(job: Job, plan: LaunchPlan, host: HostPlan) -> HostView:
    # It brings the whole job room, which `brief` does not need.
    from headrace.engines.local.limits_words import describe_host

    programs = [
        ProgramView(spec.stream, spec.local_rank, tuple(_argv(job, plan, host, spec)))
        for spec in programs_of(plan, host.name)
    ]
    return HostView(
        name=host.name,
        group=host.group,
        address=host.address,
        cpus=host.cpus,
        limits=describe_host(host.cpu_weight, host.memory, host.gpus),
        memory=host.memory,
        gpus=host.gpus,
        programs=tuple(programs),
        channels={name: _channel(job, name) for name in job.channels_of(host.group)},
    )


def _argv(job: Job, plan: LaunchPlan, host: HostPlan, spec: ProgramSpec) -> list[str]:
    """The command line of a program, with that of a rank in the place where a launcher has a proxy of it."""
    python = plan.python_of(host.group) or "python"
    if spec.is_feed:
        # The last two arguments are a descriptor that exists only once the agent runs.
        return [python, *feed_argv(plan, host.name, 0)[:-2]]
    folder = job.base_path / job.source_dir
    arguments = hyperparameter_arguments(job.hyperparameters_of(host.group))
    program = program_argv(plan, host.group, arguments, python, folder if folder.is_dir() else None)
    if spec.is_torchrun:
        return torchrun_command(plan, host.name, program, python)
    world = plan.distribution_of(host.group)
    # mpirun's own options follow from its version, which is known only where it runs.
    return ["mpirun", *(world.options if world else ()), *program] if spec.is_mpirun else program


def _channel(job: Job, name: str) -> str:
    """Where a channel's data are, and how they come when that is not the common way."""
    channel = job.inputs[name]
    place = channel.s3_data if channel.is_remote else str(channel.local_path(job.base_path))
    ways: list[str] = [job.input_mode_of(name), channel.distribution, channel.s3_data_type]
    ways += [channel.compression or "None", channel.record_wrapping or "None"]
    told = [way for way in ways if way not in ("File", "FullyReplicated", "S3Prefix", "None")]
    return f"{place} ({', '.join(told)})" if told else place


def brief(plan: LaunchPlan) -> list[str]:
    """Returns one line a group: its hosts, their CPUs and what they run; then how hosts are kept apart."""
    lines = []
    for group in plan.groups:
        hosts = [plan.host(name) for name in group.hosts]
        names = hosts[0].name if len(hosts) == 1 else f"{hosts[0].name}..{hosts[-1].name}"
        cpus = sorted({cpu_set(host.cpus) for host in hosts})
        lines.append(
            f"{group.name}: {len(hosts)} x {group.instance_type} ({names}), CPUs {' '.join(cpus)}: {work(group)}"
        )
    return [*lines, isolated(plan.isolation)]


def isolated(isolation: Isolation) -> str:
    """Returns in words how hosts are kept apart, why so, and what they do not reach.

    >>> isolated(Isolation("none", "engines.local.isolation says so"))
    'isolation: none (engines.local.isolation says so)'
    """
    why = f" ({isolation.why})" if isolation.why else ""
    alone = "" if isolation.outward else f"; hosts reach only each other: {isolation.why_not_outward}"
    return f"isolation: {isolation.level}{why}{alone}"


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
