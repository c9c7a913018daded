"""What a job keeps and where: from the job to what the duties of its hosts read, see `hosting.helpers.artefacts`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from headrace.errors import EngineRefused, ObjectMissing, StorageError, UsageError
from headrace.hosting.helpers.artefacts import COLLECT, EARLIER, RESTORE, SYNC, ArtefactPlan, HostArtefacts
from headrace.instance import storage
from headrace.instance.kept_files import CHECKPOINT_CONFIG
from headrace.instance.launch_plan import LaunchPlan
from headrace.instance.paths import DEFAULT_BASE, TreePaths
from headrace.instance.s3 import AS_ENVIRONMENT, S3Access
from headrace.job import Job
from headrace.log_setup import tell_user
from headrace.private_folders import write_atomically
from headrace.runs import RunPaths

DEFAULT_CHECKPOINTS = PurePosixPath(DEFAULT_BASE, "checkpoints")
TAKEN = (
    *(PurePosixPath(DEFAULT_BASE, name) for name in ("input", "code", "model", "output")),
    *(PurePosixPath("/", name) for name in ("proc", "sys", "dev")),
)


def plan_artefacts(job: Job, plan: LaunchPlan, paths: RunPaths) -> ArtefactPlan:
    """Returns what is kept where; see `prepare_artefacts`."""
    output = str(paths.output)
    if job.output_path is not None:
        output = _output_of(job, job.output_path)
    checkpoints = "" if job.checkpoint_s3_uri is None else absolute_place(job.checkpoint_s3_uri, job.base_path)
    config = job.request_extras.get("OutputDataConfig")
    compression = config.get("CompressionType") if isinstance(config, Mapping) else None
    leader_first = sorted(plan.hosts, key=lambda host: host.name != plan.leader)
    return ArtefactPlan(
        output=output,
        hosts=tuple(
            HostArtefacts(host.name, str(paths.host(host.name)), str(checkpoint_folder(job, paths, host.name)))
            for host in leader_first
        ),
        checkpoints=checkpoints,
        compress=compression != "NONE",
        remote=job.output_path is not None,
    )


def checkpoint_folder(job: Job, paths: RunPaths, host: str) -> Path:
    """Returns the folder of this machine that holds a host's checkpoints.

    A `checkpoint_local_path` below /opt/ml is that part of the host's tree. Any other is `checkpoints` in the tree,
    which isolation shows at that path.
    """
    wanted = PurePosixPath(job.checkpoint_local_path)
    if wanted.is_relative_to(DEFAULT_BASE):
        return paths.host(host) / wanted.relative_to(DEFAULT_BASE)
    return TreePaths(paths.host(host)).checkpoints


def check_checkpoint_folder(job: Job, isolated: bool) -> None:
    """Checks that hosts can have `checkpoint_local_path`. Contacts no server.

    Args:
        job: the job.
        isolated: whether every host has a file system of its own.

    Raises:
        EngineRefused: they cannot.
    """
    local = PurePosixPath(job.checkpoint_local_path)
    default = f"leave it out for {DEFAULT_CHECKPOINTS}, or name a folder below {DEFAULT_BASE}"
    if local in {PurePosixPath("/"), PurePosixPath(DEFAULT_BASE)} or any(map(local.is_relative_to, TAKEN)):
        raise EngineRefused(
            f"checkpoint_local_path: {str(local)!r} is used for something else in an instance", hint=default
        )
    if not isolated and not local.is_relative_to(DEFAULT_BASE):
        raise EngineRefused(
            f"checkpoint_local_path: without isolation hosts share one file system, and cannot each have {local}",
            hint=f"{default}, or use engines: {{local: {{isolation: namespace}}}}",
        )


def check_places(job: Job, elsewhere: Collection[object] = (), access: S3Access = AS_ENVIRONMENT) -> None:
    """Checks that what the job keeps can be written to its place, and says what of an earlier run it will replace.

    Args:
        job: the job.
        elsewhere: keys of the job whose places are not on this machine.
        access: how S3 is reached.

    Raises:
        EngineRefused: it cannot, or must not.
    """
    places = {
        "output_path": job.output_path,
        "checkpoint_s3_uri": job.checkpoint_s3_uri,
        "record": job.record.uri if job.record else None,
    }
    try:
        with storage.Store(access=access) as store:
            for key, place in places.items():
                if place is not None and key not in elsewhere:
                    store.check_writable(absolute_place(place, job.base_path))
            if job.output_path is not None and "output_path" not in elsewhere:
                _tell_earlier(job, store, _output_of(job, job.output_path))
    except (StorageError, UsageError) as error:
        raise EngineRefused(error.message, error.hint) from error


def _tell_earlier(job: Job, store: storage.Store, output: str) -> None:
    """Says what a run of the same name has left at the place of the output. Raises EngineRefused if that must stay."""
    names = [*_earlier(store, output)]
    if not names:
        return
    what = f"output_path: {output} holds {' and '.join(names)} of an earlier run of this name"
    other = "name another job_name or output_path"
    if job.earlier_output == "refuse":
        raise EngineRefused(f"{what}, and the job has earlier_output: refuse", hint=f"{other}, or move it away")
    tell_user(
        f"warning: {what}, which this run replaces at its end, also when it fails; to keep it {other} "
        "(`earlier_output: refuse` in the job file refuses such a start)"
    )


def _earlier(store: storage.Store, output: str) -> Iterator[str]:
    for archive, folder in EARLIER:
        try:
            store.look(storage.join(output, archive))
            yield archive
        except ObjectMissing:
            pass
        if not storage.is_s3(output) and Path(output, folder).exists():
            yield folder


def _output_of(job: Job, place: str) -> str:
    return storage.join(absolute_place(place, job.base_path), job.job_name, "output")


def prepare_artefacts(job: Job, plan: LaunchPlan, paths: RunPaths) -> None:
    """Writes what the processes of the run need on a machine, and checkpointconfig.json of every host of it.

    Args:
        job: the job.
        plan: its launch plan; the trees of the hosts exist.
        paths: the run's directory.

    Raises:
        OSError: something cannot be written.
    """
    artefacts = plan_artefacts(job, plan, paths)
    wanted = [COLLECT]
    if artefacts.checkpoints:
        wanted += [RESTORE, SYNC]
    elif artefacts.remote:
        wanted.append(SYNC)
    folder = paths.engine
    folder.mkdir(exist_ok=True)
    for name in wanted:
        (folder / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(artefacts)) + b"\n")
    for host in artefacts.hosts:
        Path(host.checkpoints).mkdir(parents=True, exist_ok=True)
        if artefacts.checkpoints:
            own = plan.host(host.name).base_dir == DEFAULT_BASE  # a file system of its own
            content = msgspec.json.encode({"LocalPath": job.checkpoint_local_path if own else host.checkpoints})
            write_atomically(TreePaths(host.base).input_config / CHECKPOINT_CONFIG, content)


def absolute_place(place: str, base: Path) -> str:
    """Returns where something is kept: an ``s3://`` URI as it is, else the path on this machine."""
    return place if storage.is_s3(place) else str(storage.local_path(place, base))
