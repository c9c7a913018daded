"""The parts of a job that users name: instance groups, input channels, distributions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, JsonValue, ValidationError, model_validator

from headrace.job.model import field_types, path_types
from headrace.job.model.field_types import AsList, line, one_of, whole
from headrace.job.model.frozen_model import Part, PartInvalid, without_none

READY_SECONDS = 300.0


class Readiness(Part):
    """When a group counts as ready, for the groups that wait for it.

    Attributes:
        port: TCP port on which every host of the group must accept connections; without one a group is ready when its
            programs and its feed server run.
        timeout: seconds within which the group must be ready; else the job fails.
    """

    port: field_types.Port | None = None
    timeout: field_types.Seconds = READY_SECONDS


class InstanceGroup(Part):
    """Machines of one type that do the same work.

    >>> InstanceGroup("data_group", "ml.c5.18xlarge", 2).instance_count
    2

    Attributes:
        instance_group_name: 1 to 64 characters on one line, unique in the job. Also spelt `name`.
        instance_type: a type of SageMaker training, e.g. ``ml.c5.xlarge``. Also spelt `type`.
        instance_count: hosts, at least 1. Also spelt `count`.
        entry_point: what this group runs instead of the job's entry point.
        environment: variables of this group's programs, over the job's; at most 100 together.
        hyperparameters: hyperparameters of this group, over the job's; at most 100 together.
        requirements: file of packages inside `source_dir` for this group, instead of the job's.
        depends_on: groups that must be ready before this group's programs start.
        ready: when this group is ready; by default as soon as its programs run.

    Raises:
        JobInvalid: a value that breaks a rule.
    """

    instance_group_name: field_types.GroupName = Field(validation_alias=AliasChoices("instance_group_name", "name"))
    instance_type: field_types.InstanceType = Field(validation_alias=AliasChoices("instance_type", "type"))
    instance_count: field_types.InstanceCount = Field(validation_alias=AliasChoices("instance_count", "count"))
    entry_point: path_types.EntryPoint | None = None
    environment: Annotated[dict[field_types.VariableName, field_types.VariableValue], field_types.AsMapping] = Field(
        default_factory=dict
    )
    hyperparameters: Annotated[
        dict[field_types.HyperparameterKey, field_types.HyperparameterValue], field_types.AsMapping
    ] = Field(default_factory=dict)
    requirements: path_types.Requirements | None = None
    depends_on: field_types.GroupNames = ()
    ready: Readiness | None = None

    def __init__(
        self,
        /,
        instance_group_name: str | None = None,
        instance_type: str | None = None,
        instance_count: int | None = None,
        **others: object,
    ) -> None:
        named = {
            "instance_group_name": instance_group_name,
            "instance_type": instance_type,
            "instance_count": instance_count,
        }
        try:
            super().__init__(**without_none(named), **others)
        except ValidationError as error:
            raise PartInvalid(error, type(self)) from None


class ShuffleConfig(Part):
    """In which order a channel's objects come, another one each epoch.

    Attributes:
        seed: seed of the order; the same seed and epoch give the same order on all hosts.
    """

    seed: Annotated[int, whole(-(2**63), 2**63 - 1)]


class TrainingInput(Part):
    """One input channel.

    Attributes:
        s3_data: where the data is: a path, a ``file://`` URI, taken as it is (``file:///data`` is absolute,
            ``file://data`` relative), or an ``s3://`` URI. What is on this machine must exist. Also spelt `path`.
        s3_data_type: ``S3Prefix``: all that begins with `s3_data`; ``ManifestFile``: `s3_data` lists it;
            ``AugmentedManifestFile``: a file of JSON lines whose attributes are the data (`Pipe` only).
        distribution: ``FullyReplicated``: every host gets all; ``ShardedByS3Key``: every host of the channel a part.
        content_type: MIME type, for the program's information; at most 256 characters.
        input_mode: ``File``, ``FastFile`` or ``Pipe``; by default the job's. See `Job.input_mode_of`.
        compression: ``None`` or ``Gzip`` (`Pipe` only). Also spelt `compression_type`.
        record_wrapping: ``None`` or ``RecordIO`` (`Pipe` only). Also spelt `record_wrapper_type`.
        shuffle_config: the objects come in another order each epoch.
        attribute_names: at most 16, in the order in which they are streamed; required with ``AugmentedManifestFile``,
            else not allowed.
        instance_groups: groups that get the channel; by default all. Either every channel names groups or none does.
            Also spelt `instance_group_names`.

    Raises:
        JobInvalid: a value that breaks a rule.
    """

    s3_data: path_types.ChannelPath = Field(validation_alias=AliasChoices("s3_data", "path"))
    distribution: Annotated[Literal["FullyReplicated", "ShardedByS3Key"], one_of] = "FullyReplicated"
    content_type: Annotated[str, line(0, 256)] | None = None
    input_mode: field_types.InputMode | None = None
    s3_data_type: field_types.DataType = "S3Prefix"
    compression: Annotated[Literal["None", "Gzip"], one_of] | None = Field(
        default=None, validation_alias=AliasChoices("compression", "compression_type")
    )
    record_wrapping: Annotated[Literal["None", "RecordIO"], one_of] | None = Field(
        default=None, validation_alias=AliasChoices("record_wrapping", "record_wrapper_type")
    )
    shuffle_config: ShuffleConfig | None = None
    attribute_names: Annotated[tuple[Annotated[str, line(1, 256)], ...], AsList] = ()
    instance_groups: field_types.GroupNames | None = Field(
        default=None, validation_alias=AliasChoices("instance_groups", "instance_group_names")
    )

    def __init__(
        self,
        /,
        s3_data: str | os.PathLike[str] | None = None,
        distribution: str | None = None,
        content_type: str | None = None,
        input_mode: str | None = None,
        instance_groups: Sequence[str] | None = None,
        shuffle_config: Mapping[str, object] | ShuffleConfig | None = None,
        **others: object,
    ) -> None:
        named = {
            "s3_data": s3_data,
            "distribution": distribution,
            "content_type": content_type,
            "input_mode": input_mode,
            "instance_groups": instance_groups,
            "shuffle_config": shuffle_config,
        }
        try:
            super().__init__(**without_none(named), **others)
        except ValidationError as error:
            raise PartInvalid(error, type(self)) from None

    @model_validator(mode="before")
    @classmethod
    def _bare_path(cls, value: object) -> object:
        return {"s3_data": value} if isinstance(value, (str, os.PathLike)) else value

    @property
    def is_remote(self) -> bool:
        """Whether the data is in an object store."""
        return path_types.is_remote(self.s3_data)

    def local_path(self, base: Path) -> Path:
        """Returns the channel's folder, or its manifest, on this machine. Only for a channel that is not remote.

        Args:
            base: what a relative path is relative to. ``file://data/val`` is relative, ``file:///data`` is not.
        """
        return base / path_types.local_form(self.s3_data)


class Elastic(Part):
    """torchrun's elasticity: the world may shrink and be started again.

    Attributes:
        min_hosts: hosts that are enough to go on.
        max_restarts: how often the ranks are started again.
    """

    min_hosts: field_types.Hosts
    max_restarts: Annotated[int, whole(0, 1000)] = 0


class TorchDistributed(Part):
    """PyTorch's launcher on every host of the distribution's groups.

    Attributes:
        enabled: whether it is used.
        processes_per_host: ranks a host, at least 1; by default one for each GPU of the instance type, at least one.
        elastic: the world may shrink and be started again; by default it is fixed.
    """

    enabled: field_types.Flag
    processes_per_host: field_types.Processes | None = None
    elastic: Elastic | None = None


class Mpi(Part):
    """mpirun over the hosts of the distribution's groups.

    Attributes:
        enabled: whether it is used.
        processes_per_host: ranks a host, at least 1; by default one for each GPU of the instance type, at least one.
        custom_mpi_options: further arguments of mpirun, divided at blanks.
    """

    enabled: field_types.Flag
    processes_per_host: field_types.Processes | None = None
    custom_mpi_options: field_types.MpiOptions = ""


class Switch(Part):
    """A way of starting ranks that has no options.

    Attributes:
        enabled: whether it is used.
    """

    enabled: field_types.Flag


class Launcher(Part):
    """A launcher of SageMaker's own over mpirun.

    Attributes:
        enabled: whether it is used.
        custom_mpi_options: further arguments of mpirun, divided at blanks.
    """

    enabled: field_types.Flag
    custom_mpi_options: field_types.MpiOptions = ""


class Library(Part):
    """A library of SageMaker's own, started by its own launcher.

    Attributes:
        enabled: whether it is used.
        custom_mpi_options: further arguments of mpirun, divided at blanks.
        parameters: options of the model-parallel library.
    """

    enabled: field_types.Flag
    custom_mpi_options: field_types.MpiOptions = ""
    parameters: Annotated[dict[str, JsonValue], field_types.AsMapping] = Field(default_factory=dict)


class SmDistributed(Part):
    """SageMaker's distributed training libraries. They run on SageMaker only.

    Attributes:
        dataparallel: the data-parallel library.
        modelparallel: the model-parallel library; it is started by `mpi`.
    """

    dataparallel: Library | None = None
    modelparallel: Library | None = None


STRATEGIES = (
    "torch_distributed",
    "mpi",
    "horovod",
    "multi_worker_mirrored_strategy",
    "smdistributed",
    "parameter_server",
    "pytorchddp",
    "pytorchxla",
)
"""Keys of a distribution that each name a way to start ranks."""


class Distribution(Part):
    """How the entry point is started when its ranks belong together. One way is enabled at most.

    Attributes:
        torch_distributed: torchrun.
        mpi: mpirun.
        horovod: mpirun with Horovod's environment.
        multi_worker_mirrored_strategy: one process a host, with `TF_CONFIG` for the hosts of the groups.
        smdistributed: SageMaker's own libraries; on SageMaker only.
        parameter_server: TensorFlow 1's parameter servers; on SageMaker only.
        pytorchddp: SageMaker's launcher for PyTorch DDP over mpirun; on SageMaker only.
        pytorchxla: PyTorch XLA's launcher; on SageMaker only.
        instance_groups: groups that the ranks span, in rank order; required when the job has several groups. A group
            belongs to one distribution at most.
    """

    torch_distributed: TorchDistributed | None = None
    mpi: Mpi | None = None
    horovod: Mpi | None = None
    multi_worker_mirrored_strategy: Switch | None = None
    smdistributed: SmDistributed | None = None
    parameter_server: Switch | None = None
    pytorchddp: Launcher | None = None
    pytorchxla: Switch | None = None
    instance_groups: field_types.GroupNames | None = None

    @property
    def ways(self) -> tuple[str, ...]:
        """Ways of starting ranks that are enabled, as they are named in a job; of a valid distribution one at most."""
        libraries = [(f"smdistributed.{name}", library) for name, library in self.smdistributed or ()]
        parts = [*((name, getattr(self, name)) for name in STRATEGIES), *libraries]
        ways = [name for name, part in parts if getattr(part, "enabled", False)]
        if "smdistributed.modelparallel" in ways and "mpi" in ways:
            ways.remove("mpi")  # mpirun is how that library is started
        return tuple(ways)

    @property
    def kind(self) -> str:
        """How ranks are started: `mpi` for Horovod too, `smdistributed.dataparallel` ...; empty when not at all."""
        way = next(iter(self.ways), "")
        return "mpi" if way == "horovod" else way

    @property
    def is_horovod(self) -> bool:
        """Whether the ranks of mpirun get Horovod's environment."""
        return self.horovod is not None and self.horovod.enabled

    @property
    def processes_per_host(self) -> int | None:
        """Ranks on each host, as the user gave it."""
        if self.kind == "torch_distributed" and self.torch_distributed:
            return self.torch_distributed.processes_per_host
        launcher = self._mpirun
        return launcher.processes_per_host if launcher else None

    @property
    def custom_mpi_options(self) -> str:
        """Further arguments of mpirun; empty for other kinds."""
        launcher = self._mpirun
        return launcher.custom_mpi_options if launcher else ""

    @property
    def elastic(self) -> Elastic | None:
        """torchrun's elasticity; None means a fixed world."""
        return self.torch_distributed.elastic if self.kind == "torch_distributed" and self.torch_distributed else None

    @property
    def _mpirun(self) -> Mpi | None:
        return next((launcher for launcher in (self.mpi, self.horovod) if launcher and launcher.enabled), None)
