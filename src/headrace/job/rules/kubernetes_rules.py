"""What the Kubernetes engine refuses of a job that is valid: what pods cannot have, and what no pod can reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from headrace.job.model import path_types
from headrace.job.model.job_topology import Structure
from headrace.job.model.kubernetes_options import (
    OUR_FOLDERS,
    OUR_VARIABLES,
    KubernetesOptions,
    KubernetesPods,
    Resources,
    Volume,
    amount_of,
)
from headrace.job.problems.finding import Finding, Path, show, value_at

_HERE = ("engines", "kubernetes")
_PLACE = "give an s3:// URI, or a path below the mount_path of one of engines.kubernetes.volumes"
_PLACES = ("claim", "host_path", "nfs")


def kubernetes_rules(job: Structure) -> Iterator[Finding]:
    """Yields what the engine refuses of a job."""
    yield from _images(job)
    yield from _volumes(job.kubernetes)
    for path, pods in _each(job.kubernetes):
        yield from _patches(path, pods)
        yield from _resources(path, pods)
        user, privileged = pods.user or job.kubernetes.user, pods.privileged
        if user and (job.kubernetes.privileged if privileged is None else privileged):
            message = "is for pods that are not privileged: it takes all further rights from them"
            yield Finding((*path, "user"), message, show(user), "leave out user or privileged")
    yield from _channels(job)
    yield from _outputs(job)


def in_volumes(job: Structure) -> Iterator[Path]:
    """Yields the channels whose data are below the mount path of a volume of the pods: they are not on this machine."""
    for name, channel in job.inputs.items():
        if is_in_volume(job.kubernetes, channel.s3_data):
            yield ("inputs", name, "s3_data")


def is_in_volume(options: KubernetesOptions, place: str | None) -> bool:
    """Tells whether a place, as a user writes it, is below the mount path of a volume, or is one."""
    return _volume_of(options, place) is not None


def _volume_of(options: KubernetesOptions, place: str | None) -> tuple[str, Volume] | None:
    """Returns name and options of the volume that a place is in: of several the innermost, as in a pod."""
    folder = PurePosixPath(path_types.local_form(place or ""))
    around = [entry for entry in options.volumes.items() if folder.is_relative_to(entry[1].mount_path or "//")]
    if ".." in folder.parts or not around:
        return None
    return max(around, key=lambda entry: len(PurePosixPath(entry[1].mount_path).parts))


def _images(job: Structure) -> Iterator[Finding]:
    if job.kubernetes.image or job.image_uri:
        return
    missing = [name for name in job.hosts if not job.kubernetes.pods_of(name).image]
    if missing:
        message = f"is required by the kubernetes engine; without one: {', '.join(missing)}"
        hint = "name an image with Python and the programs' libraries: engines: {kubernetes: {image: ...}}"
        yield Finding((*_HERE, "image"), message, hint=hint)


def _volumes(options: KubernetesOptions) -> Iterator[Finding]:
    names: dict[str, str] = {}
    for name, volume in options.volumes.items():
        path = (*_HERE, "volumes", name)
        places = [key for key in _PLACES if getattr(volume, key) is not None]
        if len(places) != 1:
            hint = "name a PersistentVolumeClaim: claim: my-data"
            yield Finding(path, f"must have one of {', '.join(_PLACES)}", ", ".join(places), hint)
        mount = volume.mount_path
        if ours := _ours(mount):
            message = f"{ours} is headrace's own in every pod"
            yield Finding((*path, "mount_path"), message, show(mount), "choose another folder, such as /data")
        elif (first := names.setdefault(mount, name)) != name:
            yield Finding((*path, "mount_path"), f"is that of the volume {first!r} too", show(mount))


def _ours(mount: str) -> str:
    """Returns our folder that a mount would hide, or would be in; empty for none."""
    path = PurePosixPath(mount)
    for ours in OUR_FOLDERS:
        if path.is_relative_to(ours) or PurePosixPath(ours).is_relative_to(path):
            return ours
    return ""


def _each(options: KubernetesOptions) -> Iterator[tuple[Path, KubernetesPods]]:
    yield _HERE, options
    for name, pods in options.groups.items():
        yield (*_HERE, "groups", name), pods


def _patches(path: Path, pods: KubernetesPods) -> Iterator[Finding]:
    for index, name in _texts_of(pods.container, "env", "name"):
        if name.startswith(OUR_VARIABLES):
            message, hint = f"the variable {name} is headrace's own", "variables of programs are `environment`"
            yield Finding((*path, "container", "env", index), message, hint=hint)
    for index, mount in _texts_of(pods.container, "volumeMounts", "mountPath"):
        if ours := _ours(mount):
            where = (*path, "container", "volumeMounts", index)
            yield Finding(where, f"{ours} is headrace's own in every pod", show(mount), "choose another folder")


def _texts_of(container: Mapping[str, object], key: str, name: str) -> Iterator[tuple[int, str]]:
    """Yields place and text of one key of each item of a list."""
    items = container.get(key)
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(text := value_at(item, (name,)), str):
            yield index, text


def _resources(path: Path, pods: KubernetesPods) -> Iterator[Finding]:
    resources = pods.resources or Resources()
    requests, limits = resources.requests, resources.limits
    for name in sorted(requests.keys() & limits.keys()):
        if amount_of(requests[name]) > amount_of(limits[name]):
            message = f"asks for more {name} than its limit, {limits[name]}"
            yield Finding((*path, "resources", "requests", name), message, show(requests[name]))
    for kind, quantities in (("requests", requests), ("limits", limits)):
        if "nvidia.com/gpu" in quantities:
            hint = "write gpus, and gpus: 0 with the name of another device in resources.limits"
            yield Finding((*path, "resources", kind, "nvidia.com/gpu"), "is not for resources", hint=hint)


def _channels(job: Structure) -> Iterator[Finding]:
    privileged = any(pods.privileged for _, pods in _each(job.kubernetes))
    for name, channel in job.inputs.items():
        place, mode = channel.s3_data, job.input_mode_of(name)
        if not channel.is_remote and not is_in_volume(job.kubernetes, place):
            yield Finding(
                ("inputs", name, "s3_data"), "pods do not see the folders of this machine", show(place), _PLACE
            )
        if mode == "FastFile" and channel.is_remote and not privileged:
            where: Path = ("inputs", name, "input_mode") if channel.input_mode else ("input_mode",)
            message = f"the channel {name!r} takes a mount, which only privileged containers may make"
            hint = "use File or Pipe, or write engines: {kubernetes: {privileged: true}} where the cluster allows it"
            yield Finding(where, message, show(mode), hint)


def _outputs(job: Structure) -> Iterator[Finding]:
    for key in ("output_path", "checkpoint_s3_uri"):
        place: str | None = getattr(job, key)
        volume = _volume_of(job.kubernetes, place)
        if place and not path_types.is_remote(place) and volume is None:
            other = "; or leave it out: the run's directory gets model and output" if key == "output_path" else ""
            yield Finding((key,), "pods do not write into the folders of this machine", show(place), f"{_PLACE}{other}")
        if volume is not None and volume[1].read_only:
            message = f"is below the mount_path of the volume {volume[0]!r}, which is read_only"
            hint = f"name a folder that pods may write, or leave out engines.kubernetes.volumes.{volume[0]}.read_only"
            yield Finding((key,), message, show(place), hint)
    if job.source_dir.startswith("/") and is_in_volume(job.kubernetes, job.source_dir):
        message = "the code travels with the job, or comes from S3"
        hint = "name a folder of this machine, or an s3:// archive; programs in an image or a volume: give a command"
        yield Finding(("source_dir",), message, show(job.source_dir), hint)
