"""Rules of data hosts that come and go while the job runs (`data_service.feed.workers`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.job.problems.finding import Finding, show
from headrace.job.rules.raw_access import Data, as_names, host_counts, mapping, pick, worlds


def data_hosts(data: Data) -> Iterator[Finding]:
    """Data hosts that come and go do nothing else, and each of them holds all of the data."""
    workers = mapping(data, "data_service", "feed", "workers")
    where = ("data_service", "feed", "workers")
    if not workers:
        return
    least, most = workers.get("min"), workers.get("max")
    names, counts = as_names(mapping(data, "data_service").get("instance_groups")), host_counts(data)
    if not names:
        yield Finding(where, "needs groups of data hosts: name them in data_service.instance_groups")
        return
    if isinstance(least, int) and isinstance(most, int) and least > most:
        yield Finding((*where, "min"), f"must be at most max, which is {most}", show(least))
    there = sum(counts.get(name, 0) for name in names)
    for key, value in (("min", least), ("max", most)):
        if isinstance(value, int) and there and value > there:
            message = f"must be at most the {there} instances of the groups of data_service"
            yield Finding((*where, key), message, show(value), "raise instance_count: it is the most that there may be")
    trains = set(as_names(mapping(data, "completion").get("instance_groups")))
    for _, world in worlds(data):
        trains.update(as_names(world.get("instance_groups")))
    for name in names:
        if name in trains or not counts.keys() - set(names):
            yield Finding(where, f"is for hosts that only make batches, and {name!r} trains")
    for name, channel in mapping(data, "inputs").items():
        kind = pick(channel, "distribution", "S3DataDistributionType")[1] if isinstance(channel, Mapping) else None
        if kind == "ShardedByS3Key":
            message = f"is not possible with the channel {name!r}, of which every host has another part"
            yield Finding(where, message, hint="write distribution: FullyReplicated, or leave workers out")
