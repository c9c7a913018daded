"""What the Kubernetes engine refuses of a job that is valid: what pods cannot have, and what no pod can reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from headrace.job.model import path_types
from headrace.job.model.kubernetes_options import OUR_FOLDERS, OUR_VARIABLES, amount_of
from headrace.job.problems.finding import Finding, Path, show
from headrace.job.rules.raw_access import Data, as_list, group_names, mapping, pick

_HERE = ("engines", "kubernetes")
_OTHER = "choose another folder, such as /data"
_PLACES = ("claim", "host_path", "nfs")


def kubernetes_rules(data: Data) -> Iterator[Finding]:
    """Yields what the engine refuses of a job.

    Args:
        data: the job as plain data.
    """
    options = mapping(data, *_HERE)
    yield from _images(data, options)
    yield from _volumes(options)
    yield from _patches(options)
    yield from _resources(options)
    yield from _users(options)
    yield from _channels(data, options)
    yield from _outputs(data, options)


def in_volumes(data: Data) -> Iterator[Path]:
    """Yields the channels whose data are below the mount path of a volume of the pods: they are not on this machine."""
    options = mapping(data, *_HERE)
    for name, channel in mapping(data, "inputs").items():
        key, text = pick(channel, "s3_data", "path")
        path: Path = ("inputs", name, key) if isinstance(channel, Mapping) else ("inputs", name)
        place = text if isinstance(channel, Mapping) else channel
        if isinstance(place, str) and is_in_volume(options, place):
            yield path


def is_in_volume(options: Data, place: str) -> bool:
    """Tells whether a place is below the mount path of a volume, or is one.

    Args:
        options: `engines.kubernetes` as plain data.
        place: as a user writes it.
    """
    return _volume_of(options, place) is not None


def _volume_of(options: Data, place: str) -> tuple[str, Data] | None:
    """Returns name and options of the volume that a place is in: of several the innermost, as in a pod."""
    folder = PurePosixPath(path_types.local_form(place))
    found: list[tuple[int, str, Data]] = []
    for name, volume in mapping(options, "volumes").items():
        mount = volume.get("mount_path") if isinstance(volume, Mapping) else None
        if isinstance(mount, str) and mount.startswith("/") and folder.is_relative_to(mount):
            found.append((len(PurePosixPath(mount).parts), name, mapping(options, "volumes", name)))
    if ".." in folder.parts or not found:
        return None
    _, name, volume = max(found, key=lambda each: each[0])
    return name, volume


def _images(data: Data, options: Data) -> Iterator[Finding]:
    if options.get("image") or data.get("image_uri"):
        return
    missing = [name for name in group_names(data) if not mapping(options, "groups", name).get("image")]
    if missing:
        message = f"is required by the kubernetes engine; without one: {', '.join(missing)}"
        hint = "name an image with Python and the programs' libraries: engines: {kubernetes: {image: ...}}"
        yield Finding((*_HERE, "image"), message, hint=hint)


def _volumes(options: Data) -> Iterator[Finding]:
    taken: dict[str, str] = {}
    for name, volume in mapping(options, "volumes").items():
        if not isinstance(volume, Mapping):
            continue
        path = (*_HERE, "volumes", name)
        given = [key for key in _PLACES if volume.get(key) is not None]
        if len(given) != 1:
            hint = "name a PersistentVolumeClaim: claim: my-data"
            yield Finding(path, f"must have one of {', '.join(_PLACES)}", ", ".join(given), hint)
        mount = volume.get("mount_path")
        if not isinstance(mount, str):
            continue
        ours = _ours(mount)
        if ours:
            message = f"{ours} is headrace's own in every pod"
            yield Finding((*path, "mount_path"), message, show(mount), _OTHER)
        elif mount in taken:
            yield Finding((*path, "mount_path"), f"is that of the volume {taken[mount]!r} too", show(mount))
        taken.setdefault(mount, name)


def _ours(mount: str) -> str:
    """Returns our folder that a mount would hide, or would be in; empty for none."""
    path = PurePosixPath(mount)
    for ours in OUR_FOLDERS:
        if path.is_relative_to(ours) or PurePosixPath(ours).is_relative_to(path):
            return ours
    return ""


def _each(options: Data) -> Iterator[tuple[Path, Data]]:
    yield _HERE, options
    for name, pods in mapping(options, "groups").items():
        if isinstance(pods, Mapping):
            yield (*_HERE, "groups", name), pods


def _patches(options: Data) -> Iterator[Finding]:
    for path, pods in _each(options):
        container = mapping(pods, "container")
        for index, variable in enumerate(as_list(container.get("env"))):
            name = variable.get("name") if isinstance(variable, Mapping) else None
            if isinstance(name, str) and name.startswith(OUR_VARIABLES):
                message, hint = f"the variable {name} is headrace's own", "variables of programs are `environment`"
                yield Finding((*path, "container", "env", index), message, hint=hint)
        for index, mount in enumerate(as_list(container.get("volumeMounts"))):
            where = mount.get("mountPath") if isinstance(mount, Mapping) else None
            if isinstance(where, str) and _ours(where):
                message = f"{_ours(where)} is headrace's own in every pod"
                yield Finding(
                    (*path, "container", "volumeMounts", index), message, show(where), "choose another folder"
                )


def _resources(options: Data) -> Iterator[Finding]:
    for path, pods in _each(options):
        resources = mapping(pods, "resources")
        requests, limits = mapping(resources, "requests"), mapping(resources, "limits")
        for name in sorted(requests.keys() & limits.keys()):
            asked, limit = _amount(requests[name]), _amount(limits[name])
            if asked is not None and limit is not None and asked > limit:
                message = f"asks for more {name} than its limit, {limits[name]}"
                yield Finding((*path, "resources", "requests", name), message, show(requests[name]))
        for kind, given in (("requests", requests), ("limits", limits)):
            if "nvidia.com/gpu" in given:
                hint = "write gpus, and gpus: 0 with the name of another device in resources.limits"
                yield Finding((*path, "resources", kind, "nvidia.com/gpu"), "is not for resources", hint=hint)


def _users(options: Data) -> Iterator[Finding]:
    for path, pods in _each(options):
        user = pods.get("user", options.get("user"))
        if user is not None and (pods.get("privileged", options.get("privileged"))):
            message = "is for pods that are not privileged: it takes all further rights from them"
            yield Finding((*path, "user"), message, show(user), "leave out user or privileged")


def _amount(value: object) -> float | None:
    try:
        return amount_of(str(value))
    except ValueError:
        return None  # it is told where the value is checked


def _channels(data: Data, options: Data) -> Iterator[Finding]:
    privileged = bool(options.get("privileged")) or any(
        mapping(options, "groups", name).get("privileged") for name in group_names(data)
    )
    for name, channel in mapping(data, "inputs").items():
        key, text = pick(channel, "s3_data", "path")
        path: Path = ("inputs", name, key) if isinstance(channel, Mapping) else ("inputs", name)
        place = text if isinstance(channel, Mapping) else channel
        if isinstance(place, str) and not path_types.is_remote(place) and not is_in_volume(options, place):
            message = "pods do not see the folders of this machine"
            hint = "give an s3:// URI, or a path below the mount_path of one of engines.kubernetes.volumes"
            yield Finding(path, message, show(place), hint)
        key, mode = pick(channel, "input_mode")
        where: Path = ("inputs", name, key)
        if mode is None:
            where, mode = ("input_mode",), data.get("input_mode")
        if mode == "FastFile" and isinstance(place, str) and path_types.is_remote(place) and not privileged:
            message = f"the channel {name!r} takes a mount, which only privileged containers may make"
            hint = "use File or Pipe, or write engines: {kubernetes: {privileged: true}} where the cluster allows it"
            yield Finding(where, message, show(mode), hint)


def _outputs(data: Data, options: Data) -> Iterator[Finding]:
    for key in ("output_path", "checkpoint_s3_uri"):
        place = data.get(key)
        if isinstance(place, str) and not path_types.is_remote(place) and not is_in_volume(options, place):
            other = "or leave it out: the run's directory gets model and output"
            hint = "give an s3:// URI, or a path below the mount_path of one of engines.kubernetes.volumes"
            message = "pods do not write into the folders of this machine"
            yield Finding((key,), message, show(place), f"{hint}; {other}" if key == "output_path" else hint)
        volume = _volume_of(options, place) if isinstance(place, str) else None
        if volume is not None and volume[1].get("read_only") is True:
            message = f"is below the mount_path of the volume {volume[0]!r}, which is read_only"
            hint = f"name a folder that pods may write, or leave out engines.kubernetes.volumes.{volume[0]}.read_only"
            yield Finding((key,), message, show(place), hint)
    code = data.get("source_dir")
    if isinstance(code, str) and code.startswith("/") and is_in_volume(options, code):
        message = "the code travels with the job, or comes from S3"
        hint = "name a folder of this machine, or an s3:// archive; programs in an image or a volume: give a command"
        yield Finding(("source_dir",), message, show(code), hint)
