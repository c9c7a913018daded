"""The rules between the keys of a job.

Each rule takes the job as plain data, as the user wrote it, and yields what is broken. A rule passes over what has the
wrong type: `fields` reports that. So all rules run on any input, and all problems come out at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from headrace.job.fields import CONTROL_PORT, FEED_PORT, MASTER_PORT
from headrace.job.findings import Finding, Path, nearest, show

HOMOGENEOUS = "homogeneousCluster"
"""Name of the one group of a job that is given with instance_type and instance_count; SageMaker's own."""

MAX_HOSTS = 254

Data = Mapping[str, object]
Rule = Callable[[Data], Iterator[Finding]]


def check(data: Data) -> list[Finding]:
    """Returns what is broken between the keys of a job."""
    return list(chain.from_iterable(rule(data) for rule in RULES))


def instances(data: Data) -> Iterator[Finding]:
    """Machines are given by groups, or by type and count."""
    single = [key for key in ("instance_type", "instance_count") if data.get(key) is not None]
    if data.get("instance_groups") is not None:
        if single:
            message = "InstanceType or InstanceCount cannot be specified with InstanceGroups"
            hint = "keep instance_groups, or instance_type and instance_count"
            yield Finding((single[0],), message, show(data[single[0]]), hint)
    elif not single:
        message = "instance_count and instance_type must be set if instance_groups is not set"
        hint = "for two kinds of machines write instance_groups: a list of name, type and count"
        yield Finding(("instance_groups",), message, hint=hint)
    elif len(single) == 1:
        missing = "instance_count" if single == ["instance_type"] else "instance_type"
        yield Finding((missing,), "instance_count and instance_type must be set if instance_groups is not set")


def sizes(data: Data) -> Iterator[Finding]:
    """Lists and mappings have limits."""
    for key, low, high, what in (
        ("hyperparameters", 0, 100, "hyperparameters"),
        ("environment", 0, 100, "variables"),
        ("instance_groups", 1, 5, "instance groups"),
        ("inputs", 1, 20, "channels"),
    ):
        value = data.get(key)
        if isinstance(value, (Mapping, list, tuple)) and not low <= len(value) <= high:
            hint = "leave inputs out when the job has no channel" if key == "inputs" and not value else ""
            allowed = f"{low} to {high}" if low else f"at most {high}"
            yield Finding((key,), f"must have {allowed} {what}", f"{len(value)}", hint)


def unique_groups(data: Data) -> Iterator[Finding]:
    """No two groups have one name."""
    first: dict[str, int] = {}
    for path, name in group_entries(data):
        index = path[1]
        if name in first:
            message = f"group names must be unique; instance_groups[{first[name]}] has this name too"
            yield Finding(path, message, repr(name))
        elif isinstance(index, int):
            first[name] = index


def hosts(data: Data) -> Iterator[Finding]:
    """Every host can have an address on this machine."""
    counts: list[object] = [data.get("instance_count")]
    groups = data.get("instance_groups")
    if isinstance(groups, (list, tuple)):
        counts = [_pick(group, "instance_count", "count")[1] for group in groups]
    total = sum(count for count in counts if isinstance(count, int) and not isinstance(count, bool) and count > 0)
    if total > MAX_HOSTS:
        key = "instance_count" if groups is None else "instance_groups"
        message = f"a job can have at most {MAX_HOSTS} hosts on this machine: <address_prefix>.1 to .{MAX_HOSTS}"
        yield Finding((key,), message, f"{total} hosts")


def references(data: Data) -> Iterator[Finding]:
    """Whoever names a group names one that exists, once."""
    known = group_names(data)
    for path, names in _references(data):
        if not names:
            yield Finding(path, "must name at least one group", "[]", "leave it out, or name a group")
        for index, name in enumerate(names):
            if not isinstance(name, str):
                continue
            if name in names[:index]:
                yield Finding((*path, index), "names a group twice", repr(name))
            yield from _known((*path, index), name, known)
    for option in ("cpu_sets", "cpu_shares"):
        for name in _mapping(data, "engines", "local", option):
            yield from _known(("engines", "local", option, name), name, known)


def channels(data: Data) -> Iterator[Finding]:
    """All channels name groups, or none does; no two have one variable SM_CHANNEL_*."""
    with_groups: list[str] = []
    without: list[str] = []
    variables: dict[str, str] = {}
    for name, channel in _mapping(data, "inputs").items():
        if isinstance(channel, (str, Mapping)):
            (with_groups if _groups_of_channel(channel)[1] is not None else without).append(name)
        variable = f"SM_CHANNEL_{name.upper()}"
        if variable in variables:
            message = f"has the same variable {variable} as the channel {variables[variable]!r}"
            yield Finding(("inputs", name), message, hint="choose names that differ in more than case")
        variables.setdefault(variable, name)
    if with_groups and without:
        message = (
            f"Some channels have assigned instance groups: [{', '.join(with_groups)}] "
            f"while others not: [{', '.join(without)}]"
        )
        yield Finding(("inputs", without[0]), message, hint="give instance_groups to all channels, or to none")


def distribution(data: Data) -> Iterator[Finding]:
    """A distribution that spans groups is enabled, and one that is enabled says which groups it spans."""
    section = _mapping(data, "distribution")
    today = "write torch_distributed: {enabled: true}, or leave distribution out"
    message = "Don't set training instance groups while no distribution strategies enabled!"
    yield from _groups_and_switch(data, section, ("distribution", "torch_distributed"), message, today)


def data_service(data: Data) -> Iterator[Finding]:
    """A data service that has groups is enabled, and one that is enabled has groups."""
    section = _mapping(data, "data_service")
    today = "write feed: {enabled: true}, or leave data_service out"
    message = "names groups while no data service is enabled"
    yield from _groups_and_switch(data, section, ("data_service", "feed"), message, today)


def cpus(data: Data) -> Iterator[Finding]:
    """CPU sets and CPU shares exclude each other; shares are for all groups."""
    local = _mapping(data, "engines", "local")
    if local.get("cpu_sets") and local.get("cpu_shares"):
        message = "cpu_sets and cpu_shares cannot be used together"
        yield Finding(("engines", "local", "cpu_shares"), message, hint="keep one of the two")
    shares = _mapping(data, "engines", "local", "cpu_shares")
    missing = [name for name in group_names(data) if name not in shares]
    if shares and missing:
        message = f"must give a weight to every group; missing: {', '.join(missing)}"
        yield Finding(("engines", "local", "cpu_shares"), message)


def ports(data: Data) -> Iterator[Finding]:
    """Every service has a port of its own."""
    given = _mapping(data, "engines", "local", "ports")
    defaults = {"control": CONTROL_PORT, "feed": FEED_PORT, "master": MASTER_PORT}
    taken = {port: name for name, port in defaults.items() if name not in given}
    for name, port in given.items():
        if isinstance(port, int) and name in defaults:
            if port in taken:
                yield Finding(
                    ("engines", "local", "ports", name), f"must differ from the {taken[port]} port", show(port)
                )
            taken.setdefault(port, name)


RULES: tuple[Rule, ...] = (
    instances,
    sizes,
    unique_groups,
    hosts,
    references,
    channels,
    distribution,
    data_service,
    cpus,
    ports,
)


def group_entries(data: Data) -> Iterator[tuple[Path, str]]:
    """Yields path and name of every group that has a name."""
    groups = data.get("instance_groups")
    for index, group in enumerate(groups if isinstance(groups, (list, tuple)) else ()):
        key, name = _pick(group, "instance_group_name", "name")
        if isinstance(name, str):
            yield ("instance_groups", index, key), name


def group_names(data: Data) -> list[str]:
    """Returns the names of the job's groups, each once."""
    if data.get("instance_groups") is None:
        return [HOMOGENEOUS]
    return list(dict.fromkeys(name for _, name in group_entries(data)))


def _groups_and_switch(data: Data, section: Data, path: Path, message: str, hint: str) -> Iterator[Finding]:
    name, program = str(path[0]), str(path[1])
    switch = section.get(program)
    enabled = switch.get("enabled") if isinstance(switch, Mapping) else None
    names = section.get("instance_groups")
    where = (name, "instance_groups")
    others = [key for key in section if key not in (program, "instance_groups")]
    if names is not None and not others and (enabled is False or switch is None):
        yield Finding(where, message, show(names), hint)
    elif enabled is True and names is None and len(group_names(data)) > 1:
        yield Finding(where, f"is required in a job with several groups; they are {_list(group_names(data))}")


def _references(data: Data) -> Iterator[tuple[Path, Sequence[object]]]:
    for name, channel in _mapping(data, "inputs").items():
        key, names = _groups_of_channel(channel)
        if isinstance(names, (list, tuple)):
            yield ("inputs", name, key), names
    for section in ("distribution", "data_service", "completion"):
        names = _mapping(data, section).get("instance_groups")
        if isinstance(names, (list, tuple)):
            yield (section, "instance_groups"), names


def _groups_of_channel(channel: object) -> tuple[str, object]:
    return _pick(channel, "instance_groups", "instance_group_names")


def _known(path: Path, name: str, known: Sequence[str]) -> Iterator[Finding]:
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {near!r}?" if near else ""
        yield Finding(path, f"must be the name of an instance group: {_list(known)}", repr(name), hint)


def _list(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none is given"


def _pick(value: object, *keys: str) -> tuple[str, object]:
    """Returns the spelling that is used and its value."""
    if isinstance(value, Mapping):
        for key in keys:
            if value.get(key) is not None:
                return key, value[key]
    return keys[0], None


def _mapping(data: Data, *path: str) -> Mapping[str, object]:
    value: object = data
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}
