"""What travels to the pods, packed: headrace's own package, what all hosts share, and what is one host's alone.

    headrace.zip     the package's instance side; it unpacks itself (`host_start`). A ConfigMap
    run.tar.gz       the run's directory: job, plan, code, orders. A Secret
    algo-N.tar.gz    the host's tree, with the job's secret. A Secret for each host

The same input gives the same bytes. Each must fit into one object of the cluster.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.engines.host_order import ORDER, HostOrder, order_text
from headrace.engines.kubernetes.kubernetes_job import KubernetesJob, jobs_that_come_and_go
from headrace.engines.planning.pack_files import files_below, packed
from headrace.engines.planning.pack_files import package_zip as package
from headrace.engines.planning.plan_artefacts import prepare_artefacts
from headrace.engines.planning.plan_channels import prepare_channels
from headrace.engines.planning.prepare_run import bring_job_code, write_job, write_trees
from headrace.engines.remote_job import ranks_beside_workers
from headrace.errors import EngineRefused
from headrace.hosting.helpers.store_record import RecordOrder, write_order
from headrace.instance.launch_plan import HostPlan
from headrace.instance.storage import is_s3
from headrace.runs import RunPaths, runs_dir

MOST_BYTES = 1024 * 1024
"""Of all values of a Secret or ConfigMap together."""
SHARED_FILES = ("job.yaml", "job.json", "request.json", "plan.json", "run.json", "code", "engine")
"""Every pod gets them, with the orders of all hosts: it keeps its own (`keep_own_orders`)."""
PLAN_IN_TREE = ("input/data/headrace/plan.json",)  # the same as the run's own: it is put there in the pod


@dataclass(frozen=True)
class Payload:
    """What travels to the pods of a run.

    Attributes:
        package: PACKAGE.
        shared: RUN_FILES.
        hosts: host name to what is its alone.
    """

    package: bytes
    shared: bytes
    hosts: Mapping[str, bytes]


def prepare_kubernetes_run(planned: KubernetesJob, paths: RunPaths) -> Payload:
    """Fills the run's directory on this machine, and packs what its pods get.

    Args:
        planned: the job, in this run.
        paths: the run's directory, which exists; it is `planned.root`.

    Raises:
        EngineRefused: it does not fit into the objects of a cluster.
        UsageError, StorageError: code that cannot be used.
        OSError: something cannot be read or written.
    """
    job, plan = planned.job, planned.plan
    write_job(job, paths)
    if not is_s3(job.source_dir):  # else every pod fetches it
        bring_job_code(job, paths)
    write_trees(job, plan, planned.orders, paths, code=None, interface="eth0", views=True)
    prepare_artefacts(job, plan, paths)
    prepare_channels(plan, planned.orders, paths)
    if job.record is not None:
        write_order(paths, RecordOrder(job.record.uri, job.record.interval))
    shared = packed(files_below(paths.root, SHARED_FILES))
    _check_code_size(shared)
    hosts = {host.name: packed(_host_files(planned, paths, host)) for host in plan.hosts}
    _check_sizes(planned, hosts)
    return Payload(package_zip(), shared, hosts)


def check_code(planned: KubernetesJob) -> None:
    """Checks that the code is small enough to travel with the job, before there is a run.

    Raises:
        EngineRefused: it is too large, or cannot be read.
        UsageError: code that cannot be used.
    """
    job = planned.job
    if is_s3(job.source_dir):
        return
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-code-") as folder:
            paths = RunPaths(Path(folder))
            bring_job_code(job, paths, runs_dir())
            code = packed(files_below(paths.root, [paths.code.name]))
    except OSError as error:
        hint = "its size is checked on a copy, in TMPDIR"
        raise EngineRefused(f"the code cannot be copied: {error}", hint) from error
    _check_code_size(code)


def _check_code_size(packed: bytes) -> None:
    size = len(packed)
    if size > MOST_BYTES:
        raise EngineRefused(
            f"the code is too large to travel with the job: {size >> 10} KiB packed, of at most {MOST_BYTES >> 10}",
            hint="put it into S3 as an archive (source_dir: s3://bucket/code.tar.gz), or data into a channel",
        )


def _check_sizes(planned: KubernetesJob, hosts: Mapping[str, bytes]) -> None:
    """Checks that each Secret is small enough; those of a group share one in a JobSet. Raises EngineRefused."""
    together = [[host] for host in hosts]
    if planned.options.is_jobset:
        together = [list(group.hosts) for group in planned.plan.groups]
    for names in together:
        size = sum(len(hosts[name]) for name in names)
        if size > MOST_BYTES:
            raise EngineRefused(
                f"what {names[0]} to {names[-1]} get is too large for a Secret: {size >> 10} KiB of {MOST_BYTES >> 10}",
                hint="use fewer hosts in a group, or leave queue and gang out",
            )


def _host_files(planned: KubernetesJob, paths: RunPaths, host: HostPlan) -> Iterator[tuple[str, Path | bytes]]:
    """Yields what is one host's alone: name in the run's directory, and a file or its content."""
    tree = f"hosts/{host.name}"
    skipped = {f"{tree}/{name}" for name in PLAN_IN_TREE}
    yield from ((name, file) for name, file in files_below(paths.root, [tree]) if name not in skipped)
    yield f"engine/{ORDER}", order_text(_order(planned, host))


def _order(planned: KubernetesJob, host: HostPlan) -> HostOrder:
    job = planned.job
    links = {order.name: order.uri for order in planned.orders if order.is_link and host.name in order.hosts}
    requirements = job.requirements_of(host.group)
    return HostOrder(
        source=job.source_dir if is_s3(job.source_dir) else "",
        links=links,
        ranks={name: ranks for name, ranks in ranks_beside_workers(job).items() if name == host.group},
        requirements={host.group: requirements} if requirements else {},
        linger=planned.options.linger if host.name == planned.plan.leader else 0.0,
        kept=job.record is not None and job.output_path is not None,
        named=planned.options.is_jobset,
        jobs=jobs_that_come_and_go(planned) if host.name == planned.plan.leader else {},
        quiet=planned.options.is_jobset and host.name != planned.plan.leader,
    )


def package_zip() -> bytes:
    """Returns headrace's package as an archive that Python runs: the instance side, and what a pod starts.

    Raises:
        EngineRefused: it is too large for a ConfigMap.
    """
    data = package("engines/kubernetes")
    if len(data) > MOST_BYTES:
        raise EngineRefused(f"headrace's package is too large for a ConfigMap: {len(data) >> 10} KiB")
    return data
