"""The shape of a job: its keys and the type of each. Rules between keys are in `rules`.

Models are frozen and refuse keys that they do not know. `JobFields` is the whole job as data; `headrace.job.Job` adds
what follows from it. In a file, a group's `name`, `type` and `count` and a channel's `path` and
`instance_group_names` are other names of SageMaker's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from headrace.errors import JobInvalid
from headrace.job import values
from headrace.job.explain import explain
from headrace.job.findings import Finding, Source

CONTROL_PORT = 7071  # the defaults of headrace.instance.launch, which this room does not import
FEED_PORT = 7070
MASTER_PORT = 7777


class PartInvalid(JobInvalid, ValueError):
    """A group or channel that breaks a rule by itself. As a ValueError, pydantic collects it inside a whole job."""

    def __init__(self, error: ValidationError, model: type[BaseModel]) -> None:
        self.findings: tuple[Finding, ...] = tuple(explain(error))
        super().__init__(Source().problems(explain(error, model)))


class Part(BaseModel):
    """Base of all parts of a job: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class InstanceGroup(Part):
    """Machines of one type that do the same work.

    >>> InstanceGroup("data_group", "ml.c5.18xlarge", 2).instance_count
    2

    Attributes:
        instance_group_name: 1 to 64 characters, unique in the job.
        instance_type: e.g. ``ml.c5.xlarge``.
        instance_count: hosts, at least 1.

    Raises:
        JobInvalid: a value that breaks a rule.
    """

    instance_group_name: values.GroupName = Field(validation_alias=AliasChoices("instance_group_name", "name"))
    instance_type: values.InstanceType = Field(validation_alias=AliasChoices("instance_type", "type"))
    instance_count: values.InstanceCount = Field(validation_alias=AliasChoices("instance_count", "count"))

    def __init__(
        self,
        /,
        instance_group_name: str | None = None,
        instance_type: str | None = None,
        instance_count: int | None = None,
        **others: object,
    ) -> None:
        given = {
            "instance_group_name": instance_group_name,
            "instance_type": instance_type,
            "instance_count": instance_count,
        }
        try:
            super().__init__(**_given(given), **others)
        except ValidationError as error:
            raise PartInvalid(error, type(self)) from None


class TrainingInput(Part):
    """One input channel: a folder that the programs find under ``/opt/ml/input/data/<channel>``.

    Attributes:
        s3_data: the folder: a path, relative to the job's `base_path`, or a ``file://`` URI. Also spelt `path`.
        distribution: ``FullyReplicated``: every host sees the whole folder.
        content_type: MIME type, for the program's information.
        input_mode: ``File``.
        instance_groups: groups that get the channel; None means all. Also spelt `instance_group_names`.

    Raises:
        JobInvalid: a value that breaks a rule.
    """

    s3_data: values.ChannelPath = Field(validation_alias=AliasChoices("s3_data", "path"))
    distribution: values.DataDistribution = "FullyReplicated"
    content_type: values.ContentType | None = None
    input_mode: values.InputMode = "File"
    instance_groups: values.GroupNames | None = Field(
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
        **others: object,
    ) -> None:
        given = {
            "s3_data": s3_data,
            "distribution": distribution,
            "content_type": content_type,
            "input_mode": input_mode,
            "instance_groups": instance_groups,
        }
        try:
            super().__init__(**_given(given), **others)
        except ValidationError as error:
            raise PartInvalid(error, type(self)) from None

    @model_validator(mode="before")
    @classmethod
    def _bare_path(cls, value: object) -> object:
        return {"s3_data": value} if isinstance(value, (str, os.PathLike)) else value

    def local_path(self, base: Path) -> Path:
        """Returns the channel's folder on this machine.

        Args:
            base: what a relative path is relative to. ``file://data/val`` is relative, ``file:///data`` is not.
        """
        return base / self.s3_data.removeprefix("file://")


class TorchDistributed(Part):
    """PyTorch's launcher on every host of the distribution's groups.

    Attributes:
        enabled: whether it is used.
        processes_per_host: ranks a host; None means one for each GPU of the instance type, at least one.
    """

    enabled: values.Flag
    processes_per_host: values.Processes | None = None


class Distribution(Part):
    """How the entry point is started when its ranks belong together.

    Attributes:
        torch_distributed: the one way of starting that there is.
        instance_groups: groups that the ranks span, in this order; may be left out when the job has one group.
    """

    torch_distributed: TorchDistributed | None = None
    instance_groups: values.GroupNames | None = None

    @property
    def kind(self) -> str:
        """Name of the strategy that is enabled; empty when none is."""
        return "torch_distributed" if self.torch_distributed and self.torch_distributed.enabled else ""

    @property
    def processes_per_host(self) -> int | None:
        """Ranks on each host, as the user gave it."""
        return self.torch_distributed.processes_per_host if self.torch_distributed else None


class Feed(Part):
    """headrace's data workers.

    Attributes:
        enabled: whether they are started.
        workers_per_host: processes a host, or ``auto``: what the training ranks leave of the cores.
    """

    enabled: values.Flag
    workers_per_host: values.Workers = "auto"


class DataService(Part):
    """Where batches are prepared.

    Attributes:
        feed: the one data service that there is.
        instance_groups: groups whose hosts run data workers; may be left out when the job has one group.
    """

    feed: Feed | None = None
    instance_groups: values.GroupNames | None = None


class Completion(Part):
    """What makes the job a success.

    Attributes:
        instance_groups: groups whose programs must all exit 0. They run the entry point.
    """

    instance_groups: values.GroupNames


class StoppingCondition(Part):
    """When the job is stopped.

    Attributes:
        max_run: seconds, 1 to 28 days.
    """

    max_run: values.MaxRun = values.MAX_RUN_DEFAULT


class LocalPorts(Part):
    """TCP ports of the local engine, the same on every host: coordinator, feed server, torch.distributed."""

    control: values.Port = CONTROL_PORT
    feed: values.Port = FEED_PORT
    master: values.Port = MASTER_PORT


class LocalOptions(Part):
    """How this machine plays all hosts.

    Attributes:
        cpu_sets: CPU ids of a group, e.g. ``0-3,5``.
        cpu_shares: weight of a group; the machine's CPUs are divided in proportion.
        stop_grace: seconds between SIGTERM and SIGKILL.
        address_prefix: host algo-n has the address ``<address_prefix>.n``.
        ports: TCP ports.
    """

    cpu_sets: Annotated[dict[str, values.CpuSet], values.AsMapping] = {}
    cpu_shares: Annotated[dict[str, values.CpuShare], values.AsMapping] = {}
    stop_grace: values.StopGrace = 30.0
    address_prefix: values.AddressPrefix = "127.0.1"
    ports: LocalPorts = LocalPorts()


class Engines(Part):
    """Options of each engine; the rest of the job is the same everywhere."""

    local: LocalOptions = LocalOptions()


class JobFields(Part):
    """A job as data, in the order of the job file. See `headrace.job.Job`."""

    job_name: values.JobName
    source_dir: values.SourceDir
    entry_point: values.EntryPoint
    hyperparameters: Annotated[dict[values.HyperparameterKey, values.HyperparameterValue], values.AsMapping] = {}
    environment: Annotated[dict[values.VariableName, values.VariableValue], values.AsMapping] = {}
    instance_groups: Annotated[tuple[InstanceGroup, ...], values.AsList] = ()
    instance_type: values.InstanceType | None = None
    instance_count: values.InstanceCount | None = None
    inputs: Annotated[dict[values.ChannelName, TrainingInput], values.AsMapping] = {}
    distribution: Distribution = Distribution()
    data_service: DataService = DataService()
    completion: Completion | None = None
    stopping_condition: StoppingCondition = StoppingCondition()
    engines: Engines = Engines()


def _given(values_by_name: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values_by_name.items() if value is not None}
