"""Writes the /opt/ml tree of one host, as SageMaker does before a container starts.

The three files of input/config are those of the service: compact JSON in its order of keys, hyperparameters as strings
that hold JSON; the reserved ones are in `reserved`. SageMaker's own training toolkit reads such a tree and reports what
`Environment` reports (tests/instance/test_oracle.py).

Code is copied: every host has its own. Input data is not. A channel is a symlink to the user's directory, or a
directory with a symlink to his file. Channels of another kind come later, see `headrace.instance.channels`.

The reserved hyperparameters: what the SageMaker SDK writes beside the user's own. Pure.

A job that was made of a CreateTrainingJob request gets none of them: what its hyperparameters are, the request says.

Those that mean something outside AWS, for every host of the job:

    sagemaker_program                                  the entry point of the host's group, if it has one
    sagemaker_job_name                                 the job's name
    sagemaker_container_log_level                      20, unless the user says otherwise
    sagemaker_region                                   only when the job runs in one

and with a distribution:

    sagemaker_torch_distributed_enabled                torch_distributed
    sagemaker_mpi_enabled                              mpi, and horovod, which is mpi
    sagemaker_mpi_num_of_processes_per_host
    sagemaker_mpi_custom_mpi_options                   the user's options as one line
    sagemaker_multi_worker_mirrored_strategy_enabled   multi_worker_mirrored_strategy
    sagemaker_distribution_instance_groups             its groups, in rank order

A job may have several distributions, which a request to SageMaker cannot express. A host of one of them finds that one,
as it would in a job of its own. A host of none finds the groups of all.

There is no sagemaker_submit_directory: the code is in place already, which SageMaker's training toolkit sees.

The code directory of one instance: a copy of its own of what the user has sent, as a container gets one.

What a program writes into its working directory is then seen by no other instance, and what was sent stays as it was.
Where the file system can, a copy shares the blocks of its original until one of them is written to (reflink).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import UsageError
from headrace.instance import entry_command, launch_plan
from headrace.instance.channels.channel_links import link
from headrace.instance.launch_plan import GroupPlan
from headrace.instance.paths import TreePaths
from headrace.name_order import by_number
from headrace.private_folders import write_atomically
from headrace.sagemaker_parameters import GROUPS, JOB_NAME, LOG_LEVEL, NAMES, PROGRAM, REGION

_FICLONE = 0x40049409  # of linux/fs.h


def shares_blocks(folder: Path) -> bool:
    """Tells whether files of a folder can share their blocks, by trying it. Raises OSError: it cannot be written."""
    with tempfile.TemporaryFile(dir=folder) as file, tempfile.TemporaryFile(dir=folder) as copy:
        file.write(b"x")
        file.flush()
        return _clone(file.fileno(), copy.fileno())


def copy_file(source: Path, target: Path) -> None:
    """Copies a file, or that to which a link leads, with mode and times. Raises OSError; there must be no target."""
    with source.open("rb") as file, target.open("xb") as copy:
        cloned = _clone(file.fileno(), copy.fileno())
    if not cloned:
        shutil.copyfile(source, target)
    shutil.copystat(source, target)


def _clone(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:  # another file system, or one that cannot: whoever copies then is told what is wrong
        return False
    return True


def copy_code(source: Path, target: Path) -> None:
    """Copies a directory of code: files with mode and times, symlinks as they are.

    What is there already is left when it is the same; so a tree may be built twice.

    Args:
        source: the code: directories, files and symlinks, nothing else.
        target: the instance's directory; its parent exists.

    Raises:
        FileExistsError: something else is there already; nothing of it is changed.
        OSError: something cannot be read or written.
    """
    target.mkdir(exist_ok=True)
    present = {entry.name for entry in target.iterdir()}
    with os.scandir(source) as entries:
        for entry in entries:
            path, copy = Path(entry.path), target / entry.name
            if entry.is_dir(follow_symlinks=False):
                copy_code(path, copy)
            elif entry.name in present:
                if not _same(path, copy):
                    raise FileExistsError(f"{copy} is there already, and is not {path}")
            elif entry.is_symlink():
                shutil.copy2(path, copy, follow_symlinks=False)
            else:
                copy_file(path, copy)
    shutil.copymode(source, target)


def _same(path: Path, copy: Path) -> bool:
    if path.is_symlink() or copy.is_symlink():
        return path.is_symlink() and copy.is_symlink() and path.readlink() == copy.readlink()
    return copy.is_file() and path.read_bytes() == copy.read_bytes()


_INFO = 20  # logging.INFO


def job_parameters(job_name: str, entry_point: str, region: str = "") -> dict[str, object]:
    """Returns those of every job, as values."""
    parameters: dict[str, object] = {JOB_NAME: job_name}
    if entry_point:
        parameters[PROGRAM] = entry_point
    return parameters | ({REGION: region} if region else {})


def distribution_parameters(
    worlds: Sequence[launch_plan.DistributionPlan], group: str, processes: Mapping[str, int]
) -> dict[str, object]:
    """Returns those of the distributions, as values.

    Args:
        worlds: all distributions of the job.
        group: the host's group.
        processes: group to its ranks on each host; of a group outside of MPI it is not read.

    Raises:
        KeyError: a kind of distribution that does not exist.
    """
    own = [world for world in worlds if group in world.groups] or list(worlds)
    parameters: dict[str, object] = {}
    for world in own:
        parameters[NAMES[world.kind, "enabled"]] = True
        if world.kind == launch_plan.MPI:
            counted = group if group in world.groups else world.groups[0]
            parameters[NAMES["mpi", "processes_per_host"]] = processes[counted]
            parameters[NAMES["mpi", "custom_mpi_options"]] = shlex.join(world.options)
    if own:
        parameters[GROUPS] = [name for world in own for name in world.groups]
    return parameters


_CHANNEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Channel:
    """One input channel of a host: what to link, and what inputdataconfig.json says of it.

    Attributes:
        source: existing file or directory that is linked; None for a channel that is filled in, mounted or piped later.
        content_type: MIME type, None if the user gave none.
        input_mode: ``File``, ``FastFile`` or ``Pipe``.
        distribution: ``FullyReplicated`` or ``ShardedByS3Key``.
        record_wrapping: ``None`` or ``RecordIO``.
        compression: ``None`` or ``Gzip``.
    """

    source: Path | None
    content_type: str | None = None
    input_mode: str = "File"
    distribution: str = "FullyReplicated"
    record_wrapping: str = "None"
    compression: str = "None"

    def config(self) -> dict[str, str]:
        """Returns the channel's part of inputdataconfig.json. Compression is left out when there is none."""
        content_type = {} if self.content_type is None else {"ContentType": self.content_type}
        compression = {} if self.compression == "None" else {"CompressionType": self.compression}
        return (
            content_type
            | {
                "TrainingInputMode": self.input_mode,
                "S3DistributionType": self.distribution,
                "RecordWrapperType": self.record_wrapping,
            }
            | compression
        )


def build_tree(
    base: str | os.PathLike[str],
    *,
    current_host: str,
    groups: Sequence[GroupPlan],
    code: str | os.PathLike[str] | None,
    job_name: str,
    entry_point: str,
    hyperparameters: Mapping[str, object] | None = None,
    texts: Mapping[str, str] | None = None,
    channels: Mapping[str, Channel] | None = None,
    distributions: Sequence[launch_plan.DistributionPlan] = (),
    network_interface_name: str = "eth0",
    region: str = "",
    verbatim: bool = False,
) -> TreePaths:
    """Writes the tree of one host; the directory may exist, and may hold headrace's own channel already.

    Args:
        base: base directory of the host.
        current_host: name of the host, e.g. ``algo-1``.
        groups: all instance groups of the job, in its order.
        code: directory with the user's code, empty when there is none; copied to ``code``. None: it comes later.
        job_name: name of the training job.
        entry_point: the user's script inside `code`; empty when a command runs instead.
        hyperparameters: the user's, as Python values.
        texts: how a request wrote hyperparameters, its reserved ones included; they are written as they are.
        channels: those of this host: channel name to what is in it.
        distributions: the job's worlds of ranks.
        network_interface_name: interface that carries the hosts' addresses (``lo`` for 127.0.0.0/8).
        region: AWS region, empty when the job runs in none.
        verbatim: the texts are all that there is, as on the service: what the SDK adds is not added.

    Returns:
        The paths of the tree.

    Raises:
        UsageError: a hyperparameter or channel that an instance cannot have.
        ValueError: a host or group that is not in `groups`.
        OSError: the tree cannot be written; FileExistsError if it holds another code or channel already.
    """
    own = _group_of(current_host, groups).name
    unknown = {name for world in distributions for name in world.groups} - {group.name for group in groups}
    if unknown:
        raise ValueError(f"distribution groups {sorted(unknown)} are not groups of the job")
    encoded = dict(texts or {})
    if not verbatim:
        processes = {group.name: group.processes_per_host for group in groups}
        added = entry_command.encode(
            {LOG_LEVEL: _INFO, **(hyperparameters or {})}
            | job_parameters(job_name, entry_point, region)
            | distribution_parameters(distributions, own, processes)
        )
        encoded = added | encoded
    resources = resource_config(current_host, groups, network_interface_name)
    channels = channels or {}
    for name, channel in channels.items():
        _check_channel(name, channel)

    paths = TreePaths(base)
    for directory in (
        paths.input_config,
        paths.input_data,
        paths.model,
        paths.checkpoints,
        paths.output_data,
        paths.output_intermediate,
    ):
        directory.mkdir(parents=True, exist_ok=True)
    if code is not None:
        copy_code(Path(code), paths.code)
    for name, channel in channels.items():
        if channel.source is None:
            continue
        if channel.source.is_dir():
            link(paths.channel(name), channel.source.resolve())
        else:
            paths.channel(name).mkdir(exist_ok=True)
            link(paths.channel(name) / channel.source.name, channel.source.resolve())
    _write(paths.hyperparameters, dict(sorted(encoded.items())))
    _write(paths.input_data_config, {name: dict(sorted(channels[name].config().items())) for name in sorted(channels)})
    _write(paths.resource_config, resources)
    return paths


def resource_config(current_host: str, groups: Sequence[GroupPlan], network_interface_name: str) -> dict[str, object]:
    """Returns the content of resourceconfig.json.

    Hosts are in the order of their numbers (algo-2 before algo-10), so that a host's place is what its name says.

    Raises:
        ValueError: the host is in no group.
    """
    own = _group_of(current_host, groups)
    return {
        "current_group_name": own.name,
        "current_host": current_host,
        "current_instance_type": own.instance_type,
        "hosts": sorted((host for group in groups for host in group.hosts), key=by_number),
        "instance_groups": [
            {"instance_group_name": group.name, "instance_type": group.instance_type, "hosts": list(group.hosts)}
            for group in groups
        ],
        "network_interface_name": network_interface_name,
    }


def _group_of(host: str, groups: Sequence[GroupPlan]) -> GroupPlan:
    """The group of a host. Raises ValueError if it is in none."""
    for group in groups:
        if host in group.hosts:
            return group
    raise ValueError(f"{host!r} is in none of the groups {[group.name for group in groups]}")


def _check_channel(name: str, channel: Channel) -> None:
    if not _CHANNEL_NAME.fullmatch(name) or name in {".", ".."}:
        raise UsageError(f"channel {name!r}: not a channel name", "use letters, digits, '.', '-' and '_', at most 64")
    if name == launch_plan.CHANNEL:
        raise UsageError(f"channel {name!r}: this name is taken by headrace's own files", "choose another name")
    if channel.source is not None and not channel.source.exists():
        raise UsageError(f"channel {name!r}: {channel.source} does not exist", "check the path under `inputs`")


def _write(path: Path, content: Mapping[str, object]) -> None:
    write_atomically(path, json.dumps(content, separators=(",", ":")).encode())
