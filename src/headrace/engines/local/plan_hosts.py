"""From a job to its launch plan on this machine. Pure."""

from __future__ import annotations

import shlex

from headrace.catalog.prices import cost, price_of
from headrace.engines.local.host_limits import HostLimits, Machine, assign_limits
from headrace.engines.planning.engine_job import in_run
from headrace.errors import JobInvalid
from headrace.hosting.isolation.network_layout import address_of
from headrace.instance.frameworks import tf_data_servers
from headrace.instance.launch_plan import (
    Budget,
    DistributionPlan,
    Elastic,
    FeedRange,
    GroupPlan,
    HostPlan,
    Isolation,
    LaunchPlan,
    MetricDefinition,
    Ports,
    Readiness,
    Retry,
    TfDataPlan,
)
from headrace.instance.paths import DEFAULT_BASE
from headrace.job import Job
from headrace.job.with_data_hosts import data_groups
from headrace.runs import RunPaths
from headrace.runs.describe import job_arn

LAST_PORT = 65535
START_TIMEOUT = 60.0
START_SECONDS_A_HOST = 2.0  # all hosts start on one machine, which may be small and busy


def make_plan(
    job: Job,
    paths: RunPaths,
    machine: Machine,
    python: str,
    isolation: Isolation | None = None,
    network: str = "10.77",
) -> LaunchPlan:
    """Returns the launch plan of a run.

    Args:
        job: the job; the local engine's own rules hold for it (`Job.check_engine`).
        paths: the run's directory; it need not exist.
        machine: what it has for the job.
        python: interpreter for the user's programs.
        isolation: of its hosts; by default none.
        network: the first two numbers of their addresses when they have a network of their own.

    Raises:
        JobInvalid: a CPU or GPU that this machine does not have, or a port beyond the last one.
    """
    limits = assign_limits(job, machine)
    isolation = isolation or Isolation()
    prefix = job.local.address_prefix
    hosts = tuple(
        HostPlan(
            name=host,
            group=group,
            address=address_of(network, number_of(host)) if isolation.own_network else f"{prefix}.{number_of(host)}",
            base_dir=DEFAULT_BASE if isolation.own_files else "",
            record_dir="",
            cpus=limits[host].cpus,
            gpus=limits[host].gpus,
            memory=limits[host].memory,
            cpu_weight=limits[host].cpu_weight,
        )
        for group, names in job.hosts.items()
        for host in names
    )
    tf_data = None
    if job.tf_data is not None:
        tf_data = TfDataPlan(job.tf_data_groups, **job.tf_data.model_dump(exclude={"enabled", "open_ports"}))
    plan = LaunchPlan(
        job_name=job.job_name,
        job_arn=job_arn(job.job_name),
        run_id="",
        entry_point=job.in_code(job.entry_point),
        command=job.command,
        groups=tuple(_group(job, group.instance_group_name, limits, len(machine.cpus)) for group in job.groups),
        hosts=hosts,
        leader=job.hosts[job.completion_groups[0]][0],
        distributions=_worlds(job),
        completion_groups=job.completion_groups,
        environment=dict(job.environment),
        ports=Ports(**job.local.ports.model_dump(exclude_none=True)),
        stop_grace=job.local.stop_grace,
        start_timeout=job.local.start_timeout or max(START_TIMEOUT, START_SECONDS_A_HOST * len(hosts)),
        max_run=float(job.max_run),
        stall_after=job.stall_after,
        keep=job.keep,
        arguments=job.hyperparameters_as == "arguments",
        encrypt=job.encrypt_inter_container_traffic,
        budget=_budget(job),
        retry=Retry(job.retry.attempts, job.retry.on == "any") if job.retry else Retry(),
        python=python,
        isolation=isolation,
        tf_data=tf_data,
        feed_range=_feed_range(job),
        metric_definitions=tuple(MetricDefinition(each.name, each.regex) for each in job.metric_definitions),
    )
    _check_last_ports(job, plan)
    return in_run(plan, paths)


def _check_last_ports(job: Job, plan: LaunchPlan) -> None:
    """Checks that the ports that are counted up from a given one exist. Raises JobInvalid."""
    servers, masters = tf_data_servers(plan), [plan.master_port_of(world) for world in plan.distributions]
    counted = {
        "tf_data": (max((server.port for server in servers), default=0), "the last server of tf.data.service"),
        "master": (max(masters, default=0), "the last of the distributions"),
    }
    problems = []
    for name, (last, whose) in counted.items():
        if last > LAST_PORT:
            given = getattr(plan.ports, name)
            message = f"{whose} would have port {last}; the last TCP port is {LAST_PORT}"
            hint = f"begin at {given - (last - LAST_PORT)} or lower"
            if name == "tf_data" and any(server.port != given + 1 for server in servers[1:]):
                hint += ", or ask for fewer workers_per_host"
            problems.append(job.problem(("engines", "local", "ports", name), message, seen=str(given), hint=hint))
    if problems:
        raise JobInvalid(tuple(problems))


def _budget(job: Job) -> Budget | None:
    if job.budget is None:
        return None
    region = job.budget.region
    priced = {group.instance_group_name: price_of(group.instance_type, region) for group in job.groups}
    prices = {name: price for name, price in priced.items() if price is not None}  # all of them: the job's rules hold
    words = (f"{price.instance_type} {price.price:g} {price.unit}, as of {price.as_of}" for price in prices.values())
    return Budget(
        max_cost=job.budget.max_cost,
        per_second={name: cost(price.price, 1.0) for name, price in prices.items()},
        region=region,
        basis=f"list prices of {region}: {'; '.join(dict.fromkeys(words))}",
    )


def _feed_range(job: Job) -> FeedRange | None:
    if job.feed_hosts is None:
        return None
    hosts = tuple(host for group in data_groups(job) for host in job.hosts[group])
    return FeedRange(hosts, job.feed_hosts.min, job.feed_hosts.max or len(hosts), job.feed_hosts.idle_after)


def _worlds(job: Job) -> tuple[DistributionPlan, ...]:
    return tuple(
        DistributionPlan(
            kind=world.kind,
            groups=world.instance_groups or (),
            options=tuple(shlex.split(world.custom_mpi_options)),
            horovod=world.is_horovod,
            elastic=Elastic(world.elastic.min_hosts, world.elastic.max_restarts) if world.elastic else None,
        )
        for world in job.distributions
    )


def number_of(host: str) -> int:
    """Returns n of ``algo-n``."""
    return int(host.rpartition("-")[2])


def _group(job: Job, name: str, limits: dict[str, HostLimits], machine: int) -> GroupPlan:
    group = job.group(name)
    hosts = job.hosts[name]
    entry_point = name in job.entry_point_groups
    ranks = job.processes_on(name) or int(entry_point)
    cores = min(len(limits[host].cpus) or machine for host in hosts)
    return GroupPlan(
        name=name,
        instance_type=group.instance_type,
        hosts=hosts,
        entry_point=entry_point,
        script=job.in_code(group.entry_point or ""),
        environment=dict(group.environment),
        processes_per_host=job.processes_on(name),
        feed_executors=feed_executors(job.feed_workers, cores, ranks) if name in job.feed_groups else 0,
        feed_fills=not cores and job.feed_workers == "auto" and name in job.feed_groups,
        depends_on=group.depends_on,
        ready=Readiness(group.ready.port or 0, group.ready.timeout) if group.ready else Readiness(),
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
