"""What follows from a job: its groups and hosts, and what runs on them.

A job file gives defaults and exceptions; here every question about one group has its answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import cast

from pydantic import JsonValue

from headrace.catalog import instance_types
from headrace.job.model import field_types
from headrace.job.model.engine_options import SlurmOptions
from headrace.job.model.field_types import KNOWN, encoded, is_reserved
from headrace.job.model.fields import (
    Distribution,
    FeedHosts,
    InstanceGroup,
    JobFields,
    LocalOptions,
    TfData,
    TrainingInput,
)
from headrace.job.model.kubernetes_options import KubernetesOptions
from headrace.job.model.path_types import is_file
from headrace.job.model.sagemaker_options import SageMakerOptions
from headrace.job.problems.finding import Path
from headrace.sagemaker_parameters import HOMOGENEOUS

RANKS_A_GPU = ("torch_distributed", "mpi")  # the others start one process a host


class Structure(JobFields):
    """A job as data, with the answers that follow from it."""

    @property
    def groups(self) -> tuple[InstanceGroup, ...]:
        """The instance groups, at least one. Without groups there is one, named ``homogeneousCluster``."""
        if self.instance_groups:
            return self.instance_groups
        name, kind, count = HOMOGENEOUS, self.instance_type, self.instance_count  # they are checked already
        return (InstanceGroup.model_construct(instance_group_name=name, instance_type=kind, instance_count=count),)

    def group(self, name: str) -> InstanceGroup:
        """Returns the group of that name. Raises KeyError."""
        for group in self.groups:
            if group.instance_group_name == name:
                return group
        raise KeyError(name)

    def entry_point_of(self, group_name: str) -> str:
        """Returns the entry point of a group: its own, else the job's; empty when the job has a command instead."""
        return self.group(group_name).entry_point or self.entry_point

    @property
    def scripts(self) -> tuple[str, ...]:
        """Files of this machine that are all the code of a job without `source_dir`, each once."""
        return () if self.source_dir else tuple(dict.fromkeys(name for _, name in entry_points(self) if is_file(name)))

    def in_code(self, entry_point: str) -> str:
        """Returns an entry point as it is inside the code: by its name alone if it is one of `scripts`."""
        return PurePosixPath(entry_point).name if entry_point in self.scripts else entry_point

    def environment_of(self, group_name: str) -> dict[str, str]:
        """Returns the variables of a group's programs: the job's, and over them its own."""
        return {**self.environment, **self.group(group_name).environment}

    def hyperparameters_of(self, group_name: str) -> dict[str, JsonValue]:
        """Returns the hyperparameters of a group: the job's in their order, and over them its own."""
        return {**self.hyperparameters, **self.group(group_name).hyperparameters}

    def requirements_of(self, group_name: str) -> str:
        """Returns a group's file of requirements, inside `source_dir`; empty when none is named."""
        return self.group(group_name).requirements or self.requirements or ""

    def input_mode_of(self, channel: str) -> field_types.InputMode:
        """Returns how a channel's data reaches its hosts: its own mode, else the job's."""
        return self.inputs[channel].input_mode or self.input_mode

    @property
    def hosts(self) -> dict[str, tuple[str, ...]]:
        """Group name to host names: ``algo-1``, ``algo-2`` ... numbered through all groups in their order."""
        hosts: dict[str, tuple[str, ...]] = {}
        first = 1
        for group in self.groups:
            last = first + group.instance_count
            hosts[group.instance_group_name] = tuple(f"algo-{number}" for number in range(first, last))
            first = last
        return hosts

    def channels_of(self, group_name: str) -> dict[str, TrainingInput]:
        """Returns the channels that the hosts of a group get."""
        return {
            name: channel
            for name, channel in self.inputs.items()
            if channel.instance_groups is None or group_name in channel.instance_groups
        }

    @property
    def distributions(self) -> tuple[Distribution, ...]:
        """The distributions that are enabled, each with its groups."""
        enabled = (world for world in self.distribution if world.kind)
        return tuple(
            world if world.instance_groups else world.model_copy(update={"instance_groups": self._group_names})
            for world in enabled
        )

    def distribution_of(self, group_name: str) -> Distribution | None:
        """Returns the distribution to which a group's programs belong; None when they run alone."""
        return next((world for world in self.distributions if group_name in (world.instance_groups or ())), None)

    @property
    def distribution_groups(self) -> tuple[str, ...]:
        """Groups whose programs are ranks of a distribution, in rank order; empty without one."""
        return tuple(name for world in self.distributions for name in world.instance_groups or ())

    @property
    def feed_groups(self) -> tuple[str, ...]:
        """Groups whose hosts run headrace's data workers; empty without them."""
        feed = self.data_service.feed
        return self._service_names if feed is not None and feed.enabled else ()

    @property
    def tf_data_groups(self) -> tuple[str, ...]:
        """Groups whose hosts run workers of tf.data.service, the dispatcher's first; empty without it."""
        return self._service_names if self.tf_data is not None else ()

    @property
    def tf_data(self) -> TfData | None:
        """Options of tf.data.service, None if it is not enabled."""
        tf_data = self.data_service.tf_data
        return tf_data if tf_data is not None and tf_data.enabled else None

    @property
    def entry_point_groups(self) -> tuple[str, ...]:
        """Groups that run the entry point, in the job's order: those that are not only data-service groups.

        A group of the data service runs it too when the distribution or the completion names it, or when all groups
        are the data service's and none is named: some group must train.
        """
        service = {*self.feed_groups, *self.tf_data_groups}
        named = set(self.distribution_groups) | set(self._completion_named)
        return tuple(name for name in self._group_names if name not in service or name in named) or self._group_names

    @property
    def completion_groups(self) -> tuple[str, ...]:
        """Groups whose programs must all exit 0: as given, else the distribution's, else `entry_point_groups`."""
        return self._completion_named or self.distribution_groups or self.entry_point_groups

    def processes_on(self, group_name: str) -> int:
        """Returns the ranks on each host of a group, 0 when it is not in the distribution.

        By default one for each GPU of the group's instance type, and at least one; with
        `multi_worker_mirrored_strategy` one process uses all GPUs.
        """
        world = self.distribution_of(group_name)
        if world is None:
            return 0
        if world.processes_per_host is not None:
            return world.processes_per_host
        if world.kind not in RANKS_A_GPU:
            return 1
        shape = instance_types.shape(self.group(group_name).instance_type)
        return max(1, shape.gpus) if shape else 1

    @property
    def processes_per_host(self) -> int | None:
        """Ranks on each host of the first distribution group, None without one. See `processes_on` for the others."""
        groups = self.distribution_groups
        return self.processes_on(groups[0]) if groups else None

    def engine_options(self, engine: str) -> Mapping[str, object]:
        """Returns what the job file has under `engines` for an engine that headrace does not bring, unchecked.

        Args:
            engine: its name.
        """
        return cast("Mapping[str, object]", (self.engines.model_extra or {}).get(engine, {}))

    @property
    def feed_workers(self) -> str | int:
        """Data worker processes on each host of `feed_groups`: ``auto`` or a number."""
        feed = self.data_service.feed
        return "auto" if feed is None else feed.workers_per_host

    @property
    def feed_hosts(self) -> FeedHosts | None:
        """How many hosts of `feed_groups` serve; None when all of them do."""
        feed = self.data_service.feed
        return feed.workers if feed is not None and feed.enabled else None

    @property
    def attempts(self) -> int:
        """How often a failed job is started again."""
        return self.retry.attempts if self.retry else 0

    @property
    def stall_after(self) -> float:
        """Seconds without a sign of life after which the job fails; 0 means no limit."""
        return (self.completion.stall_after or 0.0) if self.completion else 0.0

    @property
    def max_run(self) -> int:
        """Seconds after which the job is stopped."""
        return self.stopping_condition.max_run

    @property
    def local(self) -> LocalOptions:
        """Options of the local engine."""
        return self.engines.local

    @property
    def slurm(self) -> SlurmOptions:
        """Options of the Slurm engine."""
        return self.engines.slurm or SlurmOptions()

    @property
    def kubernetes(self) -> KubernetesOptions:
        """Options of the Kubernetes engine."""
        return self.engines.kubernetes or KubernetesOptions()

    @property
    def sagemaker(self) -> SageMakerOptions:
        """Options of the SageMaker engine."""
        return self.engines.sagemaker or SageMakerOptions()

    def hyperparameter_texts_of(self, group_name: str) -> dict[str, str]:
        """Returns a group's hyperparameters as SageMaker writes them to a file: JSON, or as the request had them."""
        raw = self.request_extras.get("HyperParameters")
        return encoded(self.hyperparameters_of(group_name), raw if isinstance(raw, dict) else {})

    @property
    def reserved_texts(self) -> dict[str, str]:
        """A request's reserved hyperparameters that no key of the job stands for; with a `command` all of them."""
        raw = self.request_extras.get("HyperParameters")
        return {
            name: text
            for name, text in (raw if isinstance(raw, dict) else {}).items()
            if is_reserved(name) and isinstance(text, str) and (self.command or name not in KNOWN)
        }

    @property
    def _group_names(self) -> tuple[str, ...]:
        return tuple(group.instance_group_name for group in self.groups)

    @property
    def _service_names(self) -> tuple[str, ...]:
        return self.data_service.instance_groups or self._group_names

    @property
    def _completion_named(self) -> tuple[str, ...]:
        return (self.completion.instance_groups or ()) if self.completion else ()


def entry_points(job: Structure) -> Iterator[tuple[Path, str]]:
    """Yields the entry points that are given, each with its place in the job: the job's, then those of groups."""
    if job.entry_point:
        yield ("entry_point",), job.entry_point
    for index, group in enumerate(job.instance_groups):
        if group.entry_point:
            yield ("instance_groups", index, "entry_point"), group.entry_point


def module_to_run(job: Structure) -> str:
    """Returns the first entry point that is no file, but a module or a package in `source_dir`; empty without one."""
    return next((text for _, text in entry_points(job) if not is_file(text)), "")


def each_group_alone(job: Structure) -> bool:
    """Tells whether every group is a world of its own, all alike.

    It is what SageMaker's containers make of a request that enables a distribution and names no groups for it.
    """
    alone = [world.model_copy(update={"instance_groups": None}) for world in job.distribution]
    names = [name for world in job.distribution for name in world.instance_groups or ()]
    return 1 < len(alone) == len(names) and all(world == alone[0] for world in alone) and names == [*job.hosts]
