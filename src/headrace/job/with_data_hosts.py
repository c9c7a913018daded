"""A job with other data hosts: the same training, and so many instances of one type that make its batches. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.job.job import Job
from headrace.job.job_document import dump

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
    removed = set(data_groups(job))
    trainers = [group for group in job.groups if group.instance_group_name not in removed]
    names = [group.instance_group_name for group in trainers]
    new = data_group_name(job)
    data = job.to_data()
    for name in ("instance_type", "instance_count"):
        data.pop(name, None)
    kept = [_moved(job, dump(group, type(group))) for group in trainers]
    data = _moved(job, data)
    data.pop("dependencies", None)  # they lie in the code of the run already
    beside: list[dict[str, object]] = [
        {"instance_group_name": new, "instance_type": instance_type, "instance_count": hosts}
    ]
    data["instance_groups"] = [*beside, *kept] if hosts else kept
    makers = [name for name in names if name in job.feed_groups] if job.feed_groups else names
    data["data_service"] = {
        "feed": {"enabled": True, "workers_per_host": job.feed_workers},
        "instance_groups": [*([new] if hosts else []), *makers],
    }
    if job.distributions:
        worlds = [
            {**dump(world, type(world)), "instance_groups": list(world.instance_groups or ())}
            for world in job.distributions
        ]
        data["distribution"] = worlds if len(worlds) > 1 else worlds[0]
    else:
        completion = data.get("completion")
        data["completion"] = {**(completion if isinstance(completion, dict) else {}), "instance_groups": names}
    if job.inputs:
        data["inputs"] = {
            name: _channel(dump(channel, type(channel)), channel.instance_groups, removed, names, new if hosts else "")
            for name, channel in job.inputs.items()
        }
    engines = data.get("engines")
    engines = dict(engines) if isinstance(engines, dict) else {}
    local = dict(engines.get("local", {}))
    if cpu_sets is not None:
        local["cpu_sets"], local["cpu_shares"] = dict(cpu_sets), {}
    data["engines"] = {**engines, "local": local}
    return Job(base_path=job.base_path, **{**data, "job_name": job_name, "source_dir": str(source_dir)})  # type: ignore[arg-type]  # checked by Job


def _moved(job: Job, owner: dict[str, object]) -> dict[str, object]:
    """Returns a job or group whose entry point is that of the run's code."""
    entry_point = owner.get("entry_point")
    return owner | {"entry_point": job.in_code(entry_point)} if isinstance(entry_point, str) else owner


def data_group_name(job: Job) -> str:
    """Returns the name of the group of data hosts: the one that the job has, else a name that is free."""
    found = data_groups(job)
    if found:
        return found[0]
    taken = {group.instance_group_name for group in job.groups}
    return next(name for name in (DATA_GROUP, *(f"{DATA_GROUP}_{n}" for n in range(2, 9))) if name not in taken)


def _channel(
    channel: dict[str, object], groups: tuple[str, ...] | None, removed: set[str], trainers: list[str], new: str
) -> dict[str, object]:
    """Returns a channel whose new readers are those of the hosts that it replaces; without such, the new hosts too."""
    if groups is None:
        return channel
    kept = [name for name in groups if name not in removed]
    reads = not removed or len(kept) < len(groups)
    return {**channel, "instance_groups": [*([new] if reads and new else []), *kept] or trainers}
