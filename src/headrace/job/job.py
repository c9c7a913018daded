"""A training job: what the user asks for, and what follows from it.

A `Job` is valid when it exists: its constructor checks every rule and raises all problems at once. It is pure data; it
does not change, and only `check_files` and `fit` look at the machine.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from pydantic import JsonValue, PrivateAttr

from headrace.catalog import instance_types
from headrace.errors import JobInvalid, Problem, RunFailed
from headrace.job import document, files, findings, rules, values
from headrace.job.explain import examine
from headrace.job.fields import Distribution, InstanceGroup, JobFields, LocalOptions, TrainingInput
from headrace.job.plain import dump, plain
from headrace.job.reading import HOMOGENEOUS

RANKS_A_GPU = ("torch_distributed", "mpi")  # the others start one process a host


class RunStatus(Protocol):
    """SageMaker's TrainingJobStatus."""

    @property
    def value(self) -> str:
        """Its text, e.g. ``Completed``."""


class RunHandle(Protocol):
    """What `Job.fit` returns: a run. The engine's own handle has more."""

    @property
    def id(self) -> str:
        """The run id."""

    @property
    def status(self) -> RunStatus:
        """Where the run is now."""

    @property
    def cause(self) -> object | None:
        """Why it did not succeed; None when it did, or goes on."""

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Waits for the end and returns the status."""

    def logs(self, *, follow: bool = False) -> Iterable[object]:
        """Returns the lines of all programs; `follow` goes on to the end of the run."""

    def stop(self, now: bool = False) -> None:
        """Stops the run."""


class Job(JobFields):
    """One training job.

    Args:
        job_name: 1 to 63 letters, digits and hyphens.
        source_dir: folder with the code, relative to `base_path`, or an archive.
        entry_point: script inside `source_dir`, ``-m module``, or the package's name.
        hyperparameters: become the program's arguments.
        environment: variables of every program.
        instance_groups: 1 to 5 groups of machines; or else:
        instance_type: the one type of machine, with
        instance_count: how many of it.
        inputs: channels: a path, a `TrainingInput` or a mapping each.
        distribution: how ranks are started, and on which groups; one mapping or a list.
        data_service: which groups run data workers.
        completion: which groups decide that the job has succeeded.
        stopping_condition: time limit.
        engines: options of the engines.
        base_path: what relative paths are relative to; by default the current directory.
        **others: every other key of a job file; see `JobFields`.

    Raises:
        JobInvalid: with every problem of the job.
    """

    _base_path: Path = PrivateAttr(default_factory=Path)
    _source: findings.Source = PrivateAttr(default_factory=findings.Source)

    def __init__(
        self,
        job_name: str | None = None,
        *,
        source_dir: str | os.PathLike[str] | None = None,
        entry_point: str | os.PathLike[str] | None = None,
        hyperparameters: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        instance_groups: Sequence[InstanceGroup | Mapping[str, object]] | None = None,
        instance_type: str | None = None,
        instance_count: int | None = None,
        inputs: Mapping[str, TrainingInput | str | os.PathLike[str] | Mapping[str, object]] | None = None,
        distribution: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
        data_service: Mapping[str, object] | None = None,
        completion: Mapping[str, object] | None = None,
        stopping_condition: Mapping[str, object] | None = None,
        engines: Mapping[str, object] | None = None,
        base_path: str | os.PathLike[str] | None = None,
        **others: object,
    ) -> None:
        given: dict[str, object] = {
            "job_name": job_name,
            "source_dir": source_dir,
            "entry_point": entry_point,
            "hyperparameters": hyperparameters,
            "environment": environment,
            "instance_groups": instance_groups,
            "instance_type": instance_type,
            "instance_count": instance_count,
            "inputs": inputs,
            "distribution": distribution,
            "data_service": data_service,
            "completion": completion,
            "stopping_condition": stopping_condition,
            "engines": engines,
            **others,
        }
        data, wrong = plain(given)
        wrong += find_problems(data)
        if wrong:
            raise JobInvalid(findings.Source().problems(wrong))
        super().__init__(**data)  # type: ignore[arg-type]  # it was checked just now
        self._base_path = Path.cwd() if base_path is None else Path(base_path).absolute()

    @classmethod
    def from_source(
        cls,
        data: Mapping[str, object],
        source: findings.Source,
        base_path: Path,
        wrong: Sequence[findings.Finding] = (),
    ) -> Job:
        """Makes a job of plain data that was read from a file.

        Args:
            data: keys of the job file and their values.
            source: file and lines, for messages.
            base_path: what relative paths are relative to.
            wrong: what is known to be wrong already.

        Raises:
            JobInvalid: with all problems: those given, those of the data, and files that are not there.
        """
        problems = [*wrong, *find_problems(data)]
        problems += files.missing(data, base_path, frozenset(finding.path for finding in problems))
        if problems:
            raise JobInvalid(source.problems(problems))
        job = cls(base_path=base_path, **data)  # type: ignore[arg-type]
        job._source = source
        return job

    def __eq__(self, other: object) -> bool:
        """Two jobs are equal when they ask for the same. Where they were written does not count."""
        return isinstance(other, Job) and all(
            getattr(self, name) == getattr(other, name) for name in JobFields.model_fields
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def base_path(self) -> Path:
        """What relative paths are relative to: the job file's folder, or the current directory of the Python caller."""
        return self._base_path

    @property
    def groups(self) -> tuple[InstanceGroup, ...]:
        """The instance groups, at least one. Without groups there is one, named ``homogeneousCluster``."""
        return self.instance_groups or (InstanceGroup(HOMOGENEOUS, self.instance_type, self.instance_count),)

    def group(self, name: str) -> InstanceGroup:
        """Returns the group of that name. Raises KeyError."""
        for group in self.groups:
            if group.instance_group_name == name:
                return group
        raise KeyError(name)

    def entry_point_of(self, group_name: str) -> str:
        """Returns the entry point of a group: its own, else the job's; empty when the job has a command instead."""
        return self.group(group_name).entry_point or self.entry_point

    def environment_of(self, group_name: str) -> dict[str, str]:
        """Returns the variables of a group's programs: the job's, and over them its own."""
        return {**self.environment, **self.group(group_name).environment}

    def hyperparameters_of(self, group_name: str) -> dict[str, JsonValue]:
        """Returns the hyperparameters of a group: the job's in their order, and over them its own."""
        return {**self.hyperparameters, **self.group(group_name).hyperparameters}

    def requirements_of(self, group_name: str) -> str:
        """Returns a group's file of requirements, inside `source_dir`; empty when none is named."""
        return self.group(group_name).requirements or self.requirements or ""

    def input_mode_of(self, channel: str) -> values.InputMode:
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
        """Groups whose hosts run data workers; empty without a data service."""
        feed = self.data_service.feed
        if feed is None or not feed.enabled:
            return ()
        return self.data_service.instance_groups or self._group_names

    @property
    def entry_point_groups(self) -> tuple[str, ...]:
        """Groups that run the entry point, in the job's order: those that are not only data-service groups.

        A group of the data service runs it too when the distribution or the completion names it, or when all groups
        are the data service's and nobody names any: somebody must train.
        """
        feed = set(self.feed_groups)
        named = set(self.distribution_groups) | set(self._completion_named)
        return tuple(name for name in self._group_names if name not in feed or name in named) or self._group_names

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

    @property
    def feed_workers(self) -> str | int:
        """Data worker processes on each host of `feed_groups`: ``auto`` or a number."""
        feed = self.data_service.feed
        return "auto" if feed is None else feed.workers_per_host

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

    def problem(self, path: findings.Path, message: str, *, seen: str = "", hint: str = "") -> Problem:
        """Makes a problem at a place in this job, with file and line when it was read from a file.

        For what only an engine can know, such as a CPU that does not exist.

        Args:
            path: keys and indices, e.g. ``("engines", "local", "ports", "feed")``.
            message: what is wrong and what is allowed.
            seen: the value, as text.
            hint: what to do.
        """
        return self._source.problem(findings.Finding(path, message, seen, hint))

    def check_files(self) -> None:
        """Checks that the code and every channel's folder are there.

        Raises:
            JobInvalid: with everything that is not.
        """
        wrong = list(files.missing(self.to_data(), self.base_path, frozenset()))
        if wrong:
            raise JobInvalid(self._source.problems(wrong))

    def to_data(self) -> dict[str, object]:
        """Returns the job as plain data, with its defaults."""
        return dump(self, JobFields)

    def to_yaml(self) -> str:
        """Returns a job file for this job. Relative paths stay as they are."""
        return document.write(self.to_data())

    def to_json(self) -> str:
        """Returns the job as JSON, with the keys of the job file; it is a job file as well."""
        return document.write_json(self.to_data())

    def fit(self, engine: str = "local", wait: bool = True, logs: bool = True) -> RunHandle:
        """Runs the job.

        Args:
            engine: where instances come from.
            wait: return when the run has ended.
            logs: while waiting, print the output of all programs.

        Raises:
            UsageError: the job cannot start; nothing was started.
            RunFailed: the run that was waited for did not succeed.
        """
        # By name: the way through the house is from job to engine, and this room must load without the engines.
        engines = importlib.import_module("headrace.engines")
        handle = cast(RunHandle, engines.start(self, engine=engine))
        if wait:
            for line in handle.logs(follow=True) if logs else ():
                print(line, flush=True)
            status = handle.wait()
            if status.value != "Completed":
                reason = str(handle.cause or "no cause is known")
                raise RunFailed(f"{handle.id}: {status.value}: {reason}", hint=f"headrace logs {handle.id}")
        return handle

    @property
    def _group_names(self) -> tuple[str, ...]:
        return tuple(group.instance_group_name for group in self.groups)

    @property
    def _completion_named(self) -> tuple[str, ...]:
        return (self.completion.instance_groups or ()) if self.completion else ()


def find_problems(data: Mapping[str, object]) -> list[findings.Finding]:
    """Returns every broken rule of a job that is given as plain data. Pure: no file is looked for."""
    return examine(JobFields, data) + rules.check(data)
