"""How rules read a job that is plain data and may be wrong anywhere: whatever has the wrong type counts as left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.job.model.parts import STRATEGIES
from headrace.job.problems.finding import Path
from headrace.sagemaker_parameters import HOMOGENEOUS

Data = Mapping[str, object]


def group_entries(data: Data) -> Iterator[tuple[Path, str]]:
    """Yields path and name of every group that has a name."""
    groups = data.get("instance_groups")
    for index, group in enumerate(groups if isinstance(groups, (list, tuple)) else ()):
        key, name = pick(group, "instance_group_name", "name")
        if isinstance(name, str):
            yield ("instance_groups", index, key), name


def group_names(data: Data) -> list[str]:
    """Returns the names of the job's groups, each once."""
    if data.get("instance_groups") is None:
        return [HOMOGENEOUS]
    return list(dict.fromkeys(name for _, name in group_entries(data)))


def entry_points(data: Data) -> Iterator[tuple[Path, str]]:
    """Yields path and text of every entry point: the job's, then those of groups."""
    groups = data.get("instance_groups")
    owners: list[tuple[Path, object]] = [((), data)]
    owners += [(("instance_groups", index), group) for index, group in enumerate(as_list(groups))]
    for path, owner in owners:
        text = pick(owner, "entry_point")[1]
        if isinstance(text, str) and text:
            yield (*path, "entry_point"), text


def as_list(value: object) -> Sequence[object]:
    """Returns a list; anything else counts as empty."""
    return value if isinstance(value, (list, tuple)) else ()


def groups_of_channel(channel: object) -> tuple[str, object]:
    """Returns the key with which a channel names its groups, and what it names."""
    return pick(channel, "instance_groups", "instance_group_names")


def quoted(names: Sequence[str]) -> str:
    """Lists names for a message."""
    return ", ".join(repr(name) for name in names) or "none is given"


def pick(value: object, *keys: str) -> tuple[str, object]:
    """Returns the spelling that is used and its value."""
    if isinstance(value, Mapping):
        for key in keys:
            if value.get(key) is not None:
                return key, value[key]
    return keys[0], None


def mapping(data: Data, *path: str) -> Mapping[str, object]:
    """Returns the mapping at a path; an empty one when there is none."""
    value: object = data
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def worlds(data: Data) -> Iterator[tuple[Path, Data]]:
    """Yields path and mapping of every distribution: one is written as itself, several as a list."""
    section = data.get("distribution")
    if isinstance(section, Mapping):
        yield ("distribution",), section
    elif isinstance(section, (list, tuple)):
        for index, world in enumerate(section):
            if isinstance(world, Mapping):
                yield ("distribution", index), world


def enabled(world: Data) -> list[str]:
    """Returns the ways of starting ranks that a distribution has enabled, in the order of `STRATEGIES`."""
    found = [name for name in STRATEGIES if mapping(world, name).get("enabled") is True]
    libraries = mapping(world, "smdistributed")
    found += [f"smdistributed.{name}" for name in libraries if mapping(libraries, name).get("enabled") is True]
    if "smdistributed.modelparallel" in found and "mpi" in found:
        found.remove("mpi")  # mpirun is how that library is started
    return found


def as_names(value: object) -> list[str]:
    """Returns the texts of a list."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, (list, tuple)) else []


def host_counts(data: Data) -> dict[str, int]:
    """Returns the hosts of every group whose count can be read."""
    groups = data.get("instance_groups")
    entries: Sequence[object] = groups if isinstance(groups, (list, tuple)) else ()
    pairs = [
        (pick(group, "instance_group_name", "name")[1], pick(group, "instance_count", "count")[1]) for group in entries
    ]
    if groups is None:
        pairs = [(HOMOGENEOUS, data.get("instance_count"))]
    return {
        name: count
        for name, count in pairs
        if isinstance(name, str) and isinstance(count, int) and not isinstance(count, bool) and count > 0
    }


def each_group_alone(data: Data) -> bool:
    """Tells whether every group is a world of its own, all alike.

    It is what SageMaker's containers make of a request that enables a distribution and names no groups for it.
    """
    found = [world for _, world in worlds(data)]
    alike = all(_ungrouped(world) == _ungrouped(found[0]) for world in found)
    names = [name for world in found for name in as_names(world.get("instance_groups"))]
    return len(found) > 1 and alike and len(found) == len(names) and names == group_names(data)


def _ungrouped(world: Data) -> dict[str, object]:
    return {key: value for key, value in world.items() if key != "instance_groups"}
