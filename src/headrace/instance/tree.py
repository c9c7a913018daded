"""Writes the /opt/ml tree of one host, as SageMaker does before a container starts.

The three files of input/config are those of the service: compact JSON in its order of keys, hyperparameters as strings
that hold JSON; the reserved ones are in `reserved`. SageMaker's own training toolkit reads such a tree and reports what
`Environment` reports (tests/instance/test_oracle.py).

Code is copied: every host has its own. Input data is not. A channel is a symlink to the user's directory, or a
directory with a symlink to his file. Channels of another kind come later, see `headrace.instance.channels`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.errors import UsageError
from headrace.instance import launch_plan, program_arguments, reserved_hyperparameters
from headrace.instance.channels.channel_links import link
from headrace.instance.code_copy import copy_code
from headrace.instance.paths import TreePaths
from headrace.name_order import by_number
from headrace.private_folders import write_atomically

_CHANNEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Group(Protocol):
    """An instance group with its hosts, e.g. `headrace.instance.launch_plan.GroupPlan`."""

    @property
    def name(self) -> str:
        """Name of the group."""

    @property
    def instance_type(self) -> str:
        """Instance type of its hosts."""

    @property
    def hosts(self) -> Sequence[str]:
        """Names of its hosts."""

    @property
    def processes_per_host(self) -> int:
        """Ranks on each of its hosts; 0 means one plain script."""


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
    groups: Sequence[Group],
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
        added = program_arguments.encode(
            reserved_hyperparameters.default_parameters()
            | dict(hyperparameters or {})
            | reserved_hyperparameters.job_parameters(job_name, entry_point, region)
            | reserved_hyperparameters.distribution_parameters(distributions, own, processes)
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


def resource_config(current_host: str, groups: Sequence[Group], network_interface_name: str) -> dict[str, object]:
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


def _group_of(host: str, groups: Sequence[Group]) -> Group:
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
