"""A job with other data hosts: the same training, and so many instances of one type that make its batches. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.job.job import Job, with_values
from headrace.job.model.fields import Completion, DataService, Feed, InstanceGroup, TrainingInput

DATA_GROUP = "data_group"


def data_groups(job: Job) -> tuple[str, ...]:
    """Returns the groups whose hosts run data workers and nothing else."""
    trains = set(job.entry_point_groups)
    return tuple(name for name in job.feed_groups if name not in trains)


def with_data_hosts(
    job: Job,
    instance_type: str,
    hosts: int,
    *,
    job_name: str,
    source_dir: str | Path,
    cpu_sets: Mapping[str, str] | None = None,
) -> Job:
    """Returns the job with other data hosts, in the place of those that it has.

    The groups that train stay as they are. They go on making batches if they did, and if there was no data service.

    Args:
        job: the job.
        instance_type: of the data hosts.
        hosts: how many; 0 for none.
        job_name: name of the new job.
        source_dir: where its code lies, with its dependencies: the code of a run.
        cpu_sets: CPU ids of groups, for the local engine; the data hosts' under the name that `data_group_name` gives.

    Raises:
        JobInvalid: the job cannot have such a group.
    """
    removed, new = set(data_groups(job)), data_group_name(job)
    trainers = [group for group in job.groups if group.instance_group_name not in removed]
    names = tuple(group.instance_group_name for group in trainers)
    data = (InstanceGroup(new, instance_type, hosts),) if hosts else ()
    makers = tuple(name for name in names if name in job.feed_groups) if job.feed_groups else names
    changed: dict[str, object] = {
        "job_name": job_name,
        "source_dir": str(source_dir),
        "dependencies": (),  # they lie in the code of the run already
        "entry_point": job.in_code(job.entry_point),
        "instance_type": None,
        "instance_count": None,
        "instance_groups": (*data, *(_moved(job, group) for group in trainers)),
        "data_service": DataService(
            feed=Feed.model_validate({"enabled": True, "workers_per_host": job.feed_workers}),
            instance_groups=(*(group.instance_group_name for group in data), *makers),
        ),
        "inputs": {
            name: channel.model_copy(
                update={"instance_groups": _readers(channel, removed, names, new if hosts else "")}
            )
            for name, channel in job.inputs.items()
        },
    }
    if job.distributions:
        changed["distribution"] = job.distributions
    else:
        changed["completion"] = (job.completion or Completion()).model_copy(update={"instance_groups": names})
    if cpu_sets is not None:
        local = job.local.model_copy(update={"cpu_sets": dict(cpu_sets), "cpu_shares": {}})
        changed["engines"] = job.engines.model_copy(update={"local": local})
    return with_values(job, changed)


def _moved(job: Job, group: InstanceGroup) -> InstanceGroup:
    """Returns a group whose entry point is that of the run's code."""
    return group.model_copy(update={"entry_point": group.entry_point and job.in_code(group.entry_point)})


def data_group_name(job: Job) -> str:
    """Returns the name of the group of data hosts: the one that the job has, else a name that is free."""
    if groups := data_groups(job):
        return groups[0]
    names = {group.instance_group_name for group in job.groups}
    return next(name for name in (DATA_GROUP, *(f"{DATA_GROUP}_{n}" for n in range(2, 9))) if name not in names)


def _readers(channel: TrainingInput, removed: set[str], trainers: tuple[str, ...], new: str) -> tuple[str, ...] | None:
    """Returns a channel's groups: the new hosts read what those did that they replace; without such, they read all."""
    if channel.instance_groups is None:
        return None
    kept = tuple(name for name in channel.instance_groups if name not in removed)
    reads = not removed or len(kept) < len(channel.instance_groups)
    return ((new, *kept) if reads and new else kept) or trainers
