"""Launch plans as people read them: hosts with their programs and channels, as values and as a document. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from headrace.agent.host.program_environment import HostVariables
from headrace.agent.launchers.mpi_command import plain_command, slots_of
from headrace.agent.program_specs import (
    FEED,
    ProgramSpec,
    expected_streams,
    mpi_world,
    program_argv,
    programs_of,
    service_argv,
)
from headrace.engines.documents import Submission
from headrace.engines.planning.plan_artefacts import absolute_place
from headrace.errors import UsageError
from headrace.insight.billing import Projection, amount, project
from headrace.insight.figures.run_files import PlannedGroup
from headrace.insight.render.document import Document, Heading, Section, Sentence, document, section, sentences, table
from headrace.instance import Environment
from headrace.instance.entry_command import hyperparameter_arguments
from headrace.instance.frameworks import tf_data_servers, torchrun_command
from headrace.instance.launch_plan import (
    MPI,
    DistributionPlan,
    GroupPlan,
    HostPlan,
    Isolation,
    LaunchPlan,
    Ports,
    Retry,
    TfDataPlan,
)
from headrace.instance.tree import resource_config
from headrace.job.model.field_types import format_cpu_set
from headrace.runs.event_text import counted

if TYPE_CHECKING:
    from headrace.job import Job
    from headrace.job.rules.engine_rules import Unused


class ProgramView(msgspec.Struct, frozen=True):
    """One program: stream (rank, ``feed``, ``tf-worker-0``), its local rank in torch.distributed, its command line."""

    stream: str
    local_rank: int | None
    argv: tuple[str, ...]


class HostView(msgspec.Struct, frozen=True, omit_defaults=True):
    """One host.

    `cpus` empty means all of the machine; `limits` are its other limits in words, `memory` the bytes that it may use
    (0: no limit), `gpus` the GPU ids that its programs see (None: all); `launched` are the ranks that mpirun starts
    here; `channels` maps names to places; `pod` is what its pod asks for, where a host is a pod.
    """

    name: str
    group: str
    address: str
    cpus: tuple[int, ...]
    limits: str
    memory: int
    gpus: tuple[int, ...] | None
    programs: tuple[ProgramView, ...]
    launched: tuple[str, ...]
    channels: dict[str, str]
    pod: str = ""


class StorageView(msgspec.Struct, frozen=True):
    """Where model and output go, and checkpoints; an empty place is the run's own folder, or nowhere. `keep` are other
    places that go with the output."""

    output: str
    checkpoints: str
    checkpoint_path: str
    keep: tuple[str, ...] = ()


class RecordView(msgspec.Struct, frozen=True):
    """Where else the record of the run goes, and every how many seconds."""

    uri: str
    interval: float


class PlanView(msgspec.Struct, frozen=True):
    """What a job would run where. Nothing was started.

    `limits` says in sentences how the machine is divided; `requirements` maps groups to the file that is installed for
    them, whose environment then replaces the interpreter that is shown; `tf_data_ports` are those of the workers of
    tf.data.service, each once; `submission` is what is sent to a platform, if anything is.
    """

    job_name: str
    entry_point: str
    leader: str
    groups: tuple[GroupPlan, ...]
    hosts: tuple[HostView, ...]
    distributions: tuple[DistributionPlan, ...]
    completion_groups: tuple[str, ...]
    ports: Ports
    tf_data: TfDataPlan | None
    environment: dict[str, str]
    stop_grace: float
    max_run: float
    isolation: Isolation
    without_effect: tuple[Unused, ...]
    storage: StorageView
    requirements: dict[str, str]
    stall_after: float
    encrypt: bool
    retry: Retry
    cost: Projection
    limits: tuple[str, ...] = ()
    tf_data_ports: tuple[int, ...] = ()
    record: RecordView | None = None
    submission: Submission | msgspec.UnsetType = msgspec.UNSET


_OF_PLAN = (
    "job_name", "entry_point", "leader", "groups", "distributions", "completion_groups", "ports", "tf_data",
    "environment", "stop_grace", "max_run", "isolation", "stall_after", "encrypt", "retry",
)  # fmt: skip
"""Fields that are those of the launch plan."""


def view(
    job: Job,
    plan: LaunchPlan,
    limits: tuple[str, ...] = (),
    region: str | None = None,
    without_effect: tuple[Unused, ...] = (),
    submission: Submission | None = None,
    python: str = "python",
    pods: Mapping[str, str] | None = None,
) -> PlanView:
    """Returns the plan of a job with the command lines and channels of every host.

    Args:
        job: the job.
        plan: its launch plan.
        limits: how the machine is divided, in sentences.
        region: whose prices are taken; None for that of the job's budget, else us-east-1.
        without_effect: what of the job has no effect in its engine.
        submission: what the engine sends to a platform; None when it sends nothing.
        python: the interpreter of groups whose plan names none.
        pods: what the pods of a group ask for, by its name; None where hosts are no pods.
    """
    asked = pods or {}
    groups = [PlannedGroup(group.name, group.instance_type, group.hosts) for group in plan.groups]
    budget = plan.budget
    where = region or (submission.region if submission else budget.region if budget else None)
    return PlanView(
        **{name: getattr(plan, name) for name in _OF_PLAN},
        hosts=tuple(_host(job, plan, host, python, asked.get(host.group, "")) for host in plan.hosts),
        cost=project(groups, plan.max_run, max_cost=budget.max_cost if budget else None, region=where),
        limits=limits,
        tf_data_ports=tuple(sorted({each.port for each in tf_data_servers(plan) if not each.is_dispatcher})),
        storage=StorageView(
            _place(job, job.output_path), _place(job, job.checkpoint_s3_uri), job.checkpoint_local_path, job.keep
        ),
        submission=submission or msgspec.UNSET,
        record=None if job.record is None else RecordView(job.record.uri, job.record.interval),
        requirements=_requirements(job),
        without_effect=(*without_effect, *dict.fromkeys(_set_over(job, plan))),
    )


def _set_over(job: Job, plan: LaunchPlan) -> Iterator[Unused]:
    """Variables of the user whose values no program gets, because headrace sets these variables itself."""
    # It brings the whole job room, which `brief` does not need.
    from headrace.job.rules.engine_rules import Unused

    for index, group in enumerate(plan.groups):
        if not plan.environment_of(group.name) or not group.entry_point:
            continue
        environment = Environment(
            plan.host(group.hosts[0]).base_dir,
            resource_config=resource_config(group.hosts[0], plan.groups, "eth0"),
            input_data_config=dict.fromkeys(job.channels_of(group.name)),
            hyperparameters=dict(job.hyperparameters_of(group.name)),
            environ={},
        )
        own = (spec for spec in programs_of(plan, group.hosts[0]) if not spec.is_service)
        spec = next(own, ProgramSpec("0"))  # of MPI, only the first host has a program of its own
        for name in HostVariables.overridden(plan, spec, environment):
            place = f"instance_groups[{index}].environment" if name in group.environment else "environment"
            yield Unused(f"{place}.{name}", "headrace sets it itself")


def _host(job: Job, plan: LaunchPlan, host: HostPlan, python: str, pod: str) -> HostView:
    # It brings the whole job room, which `brief` does not need.
    from headrace.engines.local.host_limits import describe_host

    programs = [
        ProgramView(spec.stream, spec.local_rank, tuple(_argv(job, plan, host, spec, python)))
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
        launched=expected_streams(plan, host.name) if mpi_world(plan, host.name) is not None else (),
        channels={name: _channel(job, name) for name in job.channels_of(host.group)},
        pod=pod,
    )


def _argv(job: Job, plan: LaunchPlan, host: HostPlan, spec: ProgramSpec, python: str) -> list[str]:
    """The command line of a program; where a launcher starts a proxy of a rank, the rank's own command line stands."""
    python = plan.python_of(host.group) or python
    if spec.is_service:
        # A descriptor, the last two arguments, exists only once the agent runs; so do the folder, and the secret.
        argv = service_argv(plan, host.name, spec.stream, "$TMPDIR", b"", 0)[:-2]
        if spec.stream == FEED and plan.group(host.group).feed_fills:
            argv[argv.index("--executors") + 1] = "$CPUS"
        return [python, *argv]
    folder = job.base_path / job.source_dir
    if job.scripts:
        folder = (job.base_path / job.entry_point_of(host.group)).parent
    arguments = hyperparameter_arguments(job.hyperparameters_of(host.group))
    program = program_argv(plan, host.group, arguments, python, folder if folder.is_dir() else None)
    if spec.is_torchrun:
        return torchrun_command(plan, host.name, program, python)
    world = plan.distribution_of(host.group)
    if spec.is_mpirun and world is not None:
        try:
            return plain_command(slots_of(plan, world, named=plan.isolation.own_files), program, world.options)
        except ValueError as error:
            raise UsageError(f"custom_mpi_options: {error}", "give the value, or leave the option out") from None
    return program


def _requirements(job: Job) -> dict[str, str]:
    """The file of requirements of each group that has one."""
    from headrace.engines.planning.prepare_run import requirements_file

    return {name: file for name in job.hosts if (file := requirements_file(job, name))}


def _channel(job: Job, name: str) -> str:
    """Where a channel's data are, and how they are delivered unless that is the default."""
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
            f"{group.name}: {len(hosts)} x {group.instance_type} ({names}), CPUs {' '.join(cpus)}: "
            f"{work(group, plan.tf_data)}"
        )
    return [*lines, plan.isolation.words()]


def worlds(plan: PlanView) -> list[str]:
    """Returns one line a distribution: its kind, groups and ranks, and what its launcher is told."""
    groups = {group.name: group for group in plan.groups}
    lines = []
    for world in plan.distributions:
        ranks = sum(groups[name].processes_per_host * len(groups[name].hosts) for name in world.groups)
        kind = f"{world.kind} with Horovod" if world.horovod else world.kind
        words = [f"{kind} over {' '.join(world.groups)}: {counted(ranks, 'rank')}"]
        if world.kind == MPI:
            words.append(f"started by mpirun on {groups[world.groups[0]].hosts[0]}")
        if world.elastic is not None:
            words.append(
                f"elastic from {counted(world.elastic.min_hosts, 'host')} on, "
                f"restarted {counted(world.elastic.max_restarts, 'time')} at most"
            )
        lines.append(", ".join(words))
    return lines


def promises(plan: PlanView) -> str:
    """Returns in words when the job ends.

    A part is left out when it is not so: retries, the limit of silence, TLS.
    """
    words = [f"stops after {plan.max_run:g} s" if plan.max_run else "no time limit"]
    if plan.cost.max_cost is not None:
        words.append(f"stops when it has cost {amount(plan.cost.max_cost)} {plan.cost.currency}")
    words.append(f"succeeds with {', '.join(plan.completion_groups)}")
    if plan.stall_after:
        words.append(f"fails after {plan.stall_after:g} s of silence")
    if plan.retry.attempts:
        which = "any failure" if plan.retry.any else "the loss of a host"
        words.append(f"is tried again after {which}, {counted(plan.retry.attempts, 'time')}")
    if plan.encrypt:
        words.append("the feed under TLS")
    return "; ".join(words)


def used_ports(plan: PlanView) -> str:
    """Returns the ports that the job takes, in words."""
    words = [f"control {plan.ports.control}"]
    if any(group.feed_executors for group in plan.groups):
        words.append(f"feed {plan.ports.feed}")
    if plan.tf_data is not None:
        words.append(f"tf.data dispatcher {plan.ports.tf_data}")
        workers = format_cpu_set(plan.tf_data_ports).replace("-", " to ").replace(",", " and ")
        words.append(f"tf.data {'workers' if len(plan.tf_data_ports) > 1 else 'worker'} {workers}")
        if not plan.isolation.own_network:
            words[-1] += " (tf.data's on all addresses, without authentication)"
    if any(world.kind != MPI for world in plan.distributions):
        words.append(f"ranks {plan.ports.master}" + (" and next" if len(plan.distributions) > 1 else ""))
    return f"ports: {', '.join(words)}"


def work(group: GroupPlan, tf_data: TfDataPlan | None = None) -> str:
    """Returns what every host of a group runs, in words.

    Args:
        group: the group.
        tf_data: the job's tf.data.service, None without one.
    """
    parts = []
    if group.entry_point:
        ranks = group.processes_per_host
        parts.append(counted(ranks, "rank") if ranks else "entry point")
    if group.feed_fills:
        parts.append("a data worker for each CPU" + (" that is left" if group.entry_point else ""))
    elif group.feed_executors:
        parts.append(counted(group.feed_executors, "data worker"))
    if tf_data is not None and group.name in tf_data.groups:
        parts.append(counted(tf_data.workers_per_host, "tf.data worker"))
        if group.name == tf_data.groups[0]:
            parts.append(f"dispatcher on {group.hosts[0]}")
    waits = f", after {' and '.join(group.depends_on)}" if group.depends_on else ""
    return (" + ".join(parts) or "nothing") + waits


def cpu_set(cpus: tuple[int, ...]) -> str:
    """Returns CPU ids as Linux writes them, and ``all`` for none."""
    return format_cpu_set(cpus) or "all"


def _place(job: Job, place: str | None) -> str:
    return absolute_place(place, job.base_path) if place else ""


def plan_document(plan: PlanView) -> Document:
    """Returns a plan."""
    groups = (
        (group.name, group.instance_type, " ".join(group.hosts), work(group, plan.tf_data)) for group in plan.groups
    )
    unused = [(each.field, each.why) for each in plan.without_effect]
    return document(
        section(Heading(f"{plan.job_name}  ({promises(plan)})")),
        section(table(("group", "type", "hosts", "a host runs"), groups)),
        *(_host_section(plan, host) for host in plan.hosts),
        section(*sentences((*worlds(plan), *_stored(plan), *plan.limits, used_ports(plan), plan.isolation.words()))),
        *(() if plan.submission is msgspec.UNSET else _submission(plan.submission)),
        section(table(("without effect here", "why"), unused)) if unused else None,
    )


def _host_section(plan: PlanView, host: HostView) -> Section:
    leader = ", leads the job" if host.name == plan.leader else ""
    owns = host.pod or f"CPUs {cpu_set(host.cpus)}" + (f", {host.limits}" if host.limits else "")
    lines = [f"[{program.stream}] {shlex.join(program.argv)}" for program in host.programs]
    if host.launched:
        lines.append(f"[{' '.join(host.launched)}] ranks that mpirun starts")
    lines += [f"channel {name}: {folder}" for name, folder in host.channels.items()]
    heading = Heading(f"{host.group}/{host.name}  {host.address}  {owns}{leader}")
    return section(heading, *(Sentence(line, detail=True) for line in lines))


def _submission(submission: Submission) -> Iterator[Section]:
    """What is sent to a platform, what is stored before, and what must be allowed."""
    yield section(*sentences(f"upload: {upload.what}: {upload.to}" for upload in submission.uploads))
    for party, permissions in submission.permissions.items():
        rows = (
            (" ".join(each.actions), "optional" if each.optional else "", " ".join(each.resources), each.why)
            for each in permissions
        )
        yield section(table((f"actions that the {party} needs", "", "on", "for"), rows))
    heading = Heading(f"{submission.operation} in {submission.region}:")
    yield section(heading, Sentence(json.dumps(submission.request, indent=2)))


def _stored(plan: PlanView) -> Iterable[str]:
    """What the job brings along and keeps, in words."""
    for group, file in plan.requirements.items():
        yield f"requirements of {group}: {file}, installed before the start, once for all jobs with the same"
    storage = plan.storage
    yield f"model and output: {storage.output or 'output, in the folder of the run'}"
    if storage.keep:
        yield f"with the output: {', '.join(storage.keep)} of every host"
    yield (
        "other files: a host's own /tmp goes with it; what it writes below its working directory stays in the run's "
        "folder (headrace files)"
    )
    if storage.checkpoints:
        yield f"checkpoints: {storage.checkpoint_path} of every host, kept in {storage.checkpoints}"
    if plan.record is not None:
        yield f"record: {plan.record.uri}, every {plan.record.interval:g} s"
