"""What travels to the pods, packed: headrace's own package, what all hosts share, and what is one host's alone.

    headrace.zip     the package's instance side; it unpacks itself (`unpack_package`). A ConfigMap
    run.tar.gz       the run's directory: job, plan, code, orders. A Secret
    algo-N.tar.gz    the host's tree, with the job's secret. A Secret for each host

The same input gives the same bytes. Each must fit into one object of the cluster.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

import headrace
from headrace.engines.kubernetes.kubernetes_job import KubernetesJob
from headrace.engines.kubernetes.pod_order import POD_ORDER, PodOrder
from headrace.engines.planning.plan_artefacts import prepare_artefacts
from headrace.engines.planning.plan_channels import prepare_channels
from headrace.engines.planning.prepare_run import bring_job_code, write_job, write_trees
from headrace.engines.remote_job import ranks_beside_workers
from headrace.errors import EngineRefused
from headrace.hosting.helpers.store_record import RecordOrder, write_order
from headrace.instance.launch_plan import HostPlan, plan_text
from headrace.instance.storage import is_s3
from headrace.runs import RunPaths, runs_dir

PACKAGE = "headrace.zip"
SHARED = "run.tar.gz"
MOST_BYTES = 1024 * 1024
"""Of all values of a Secret or ConfigMap together."""
SHARED_FILES = ("job.yaml", "job.json", "request.json", "plan.json", "run.json", "code", "engine")
"""Every pod gets them, with the orders of all hosts: it keeps its own (`hosting.helpers.own_orders`)."""
PLAN_IN_TREE = ("input/data/headrace/plan.json",)  # the same as the run's own: it is put there in the pod

FOLDERS = ("adapters", "agent", "engines/kubernetes", "feed", "hosting", "instance", "processes", "runs")
NOT_IN_PODS = ("feed/bench",)
START = "__main__.py"
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Payload:
    """What travels to the pods of a run.

    Attributes:
        package: PACKAGE.
        shared: SHARED.
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
    paths.plan.write_text(plan_text(plan), encoding="utf-8")
    write_trees(job, plan, planned.orders, paths, code=None, interface="eth0", views=True)
    prepare_artefacts(job, plan, paths)
    prepare_channels(plan, planned.orders, paths)
    if job.record is not None:
        write_order(paths, RecordOrder(job.record.uri, job.record.interval))
    shared = _packed(_files(paths.root, SHARED_FILES))
    _check_code_size(shared)
    hosts = {host.name: _packed(_host_files(planned, paths, host)) for host in plan.hosts}
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
            packed = _packed(_files(paths.root, [paths.code.name]))
    except OSError as error:
        hint = "its size is checked on a copy, in TMPDIR"
        raise EngineRefused(f"the code cannot be copied: {error}", hint) from error
    _check_code_size(packed)


def _check_code_size(packed: bytes) -> None:
    if len(packed) > MOST_BYTES:
        raise EngineRefused(
            f"the code is too large to travel with the job: {_kib(packed)} KiB packed, of at most {MOST_BYTES >> 10}",
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
    yield from ((name, file) for name, file in _files(paths.root, [tree]) if name not in skipped)
    yield f"engine/{POD_ORDER}.json", msgspec.json.format(msgspec.json.encode(_pod_order(planned, host))) + b"\n"


def _pod_order(planned: KubernetesJob, host: HostPlan) -> PodOrder:
    job = planned.job
    links = {order.name: order.uri for order in planned.orders if order.is_link and host.name in order.hosts}
    return PodOrder(
        source=job.source_dir if is_s3(job.source_dir) else "",
        links=links,
        ranks={name: ranks for name, ranks in ranks_beside_workers(job).items() if name == host.group},
        requirements=job.requirements_of(host.group),
        linger=planned.options.linger if host.name == planned.plan.leader else 0.0,
        kept=job.record is not None and job.output_path is not None,
        named=planned.options.is_jobset,
        quiet=planned.options.is_jobset and host.name != planned.plan.leader,
    )


def package_zip() -> bytes:
    """Returns headrace's package as an archive that Python runs: the instance side, and what a pod starts.

    Raises:
        EngineRefused: it is too large for a ConfigMap.
    """
    root = Path(headrace.__file__).parent
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, file in _package_files(root):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, file.read_bytes())
    if len(out.getvalue()) > MOST_BYTES:
        raise EngineRefused(f"headrace's package is too large for a ConfigMap: {_kib(out.getvalue())} KiB")
    return out.getvalue()


def _package_files(root: Path) -> Iterator[tuple[str, Path]]:
    yield START, root / "engines" / "kubernetes" / "unpack_package.py"
    files = [*root.glob("*.py"), *(root / "engines").glob("*.py")]
    for folder in FOLDERS:
        files += (file for file in (root / folder).rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    for file in sorted(files):
        name = file.relative_to(root).as_posix()
        if not name.startswith(tuple(f"{skipped}/" for skipped in NOT_IN_PODS)):
            yield f"headrace/{name}", file


def _files(root: Path, names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yields files, folders and symlinks below `root` in order, with their names. What is not there is passed."""
    for name in names:
        path = root / name
        if path.is_symlink() or not path.is_dir():
            if path.is_symlink() or path.exists():
                yield name, path
            continue
        yield name, path
        yield from _files(root, sorted(f"{name}/{child.name}" for child in path.iterdir()))


def _packed(files: Iterable[tuple[str, Path | bytes]]) -> bytes:
    """Packs files: modes stay, owners and times do not."""
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0, filename="") as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, file in files:
            info = tarfile.TarInfo(name)
            if isinstance(file, bytes):
                info.size, info.mode = len(file), 0o644
                archive.addfile(info, io.BytesIO(file))
            elif file.is_symlink():
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(file)  # noqa: PTH115
                archive.addfile(info)
            elif file.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
            else:
                content = file.read_bytes()
                info.size, info.mode = len(content), stat.S_IMODE(file.stat().st_mode)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _kib(data: bytes) -> int:
    return len(data) >> 10
