"""Rules about distributions: one way of starting ranks each, on groups that no other has."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.job.problems.finding import Finding, show
from headrace.job.rules.raw_access import Data, as_names, enabled, group_names, host_counts, mapping, quoted, worlds

NOTHING_ENABLED = "Don't set training instance groups while no distribution strategies enabled!"


def distribution(data: Data) -> Iterator[Finding]:
    """A distribution that spans groups is enabled, once, and one that is enabled says which groups it spans."""
    groups = group_names(data)
    for path, world in worlds(data):
        ways = enabled(world)
        names = world.get("instance_groups")
        where = (*path, "instance_groups")
        if len(ways) > 1:
            message = f"one way of starting ranks may be enabled at a time; there are {', '.join(ways)}"
            hint = "write a list of distributions with different instance_groups, or keep one"
            yield Finding(path, message, hint=hint)
        elif not ways and names is not None and all(_off(world, key) for key in world if key != "instance_groups"):
            hint = "write torch_distributed: {enabled: true}, or leave distribution out"
            yield Finding(where, NOTHING_ENABLED, show(names), hint, code="ValueError")
        elif ways and names is None and len(groups) > 1:
            yield Finding(where, f"is required in a job with several groups; they are {quoted(groups)}")
        yield from _elastic(data, (*path, "torch_distributed", "elastic", "min_hosts"), world)


def one_world_a_group(data: Data) -> Iterator[Finding]:
    """The ranks of a group belong to one distribution at most."""
    taken: dict[str, int] = {}
    for number, (path, world) in enumerate(worlds(data)):
        if not enabled(world):
            continue
        names = world.get("instance_groups")
        for index, name in enumerate(group_names(data) if names is None else as_names(names)):
            if taken.get(name, number) != number:
                where = (*path, "instance_groups") if names is None else (*path, "instance_groups", index)
                message = f"the group is in distribution[{taken[name]}] already"
                yield Finding(where, message, repr(name), "a group's ranks belong to one distribution")
            taken.setdefault(name, number)


def _off(world: Data, key: str) -> bool:
    return mapping(world, key).get("enabled") is False


def _elastic(data: Data, path: tuple[str | int, ...], world: Data) -> Iterator[Finding]:
    fewest = mapping(world, "torch_distributed", "elastic").get("min_hosts")
    counts = host_counts(data)
    names = as_names(world.get("instance_groups")) or list(counts)
    total = sum(counts.get(name, 0) for name in names)
    if isinstance(fewest, int) and not isinstance(fewest, bool) and fewest > total > 0:
        yield Finding(path, f"must be at most the hosts of the distribution, which are {total}", show(fewest))
