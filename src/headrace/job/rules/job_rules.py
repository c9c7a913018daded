"""The rules between the keys of a job.

Each rule takes the job as plain data, as the user wrote it, and yields what is broken. A rule passes over what has the
wrong type: `fields` reports that. So all rules run on any input, and all problems come out at once.

Rules about distributions: one way of starting ranks each, on groups that no other has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import PurePosixPath

from headrace.catalog.prices import DEFAULT_REGION, price_of, regions
from headrace.job.find_engine import engine_names
from headrace.job.model import path_types
from headrace.job.model.engine_options import LocalPorts
from headrace.job.model.field_types import MAX_RUN_DEFAULT
from headrace.job.model.fields import JobFields
from headrace.job.problems.finding import Finding, Path, known_keys, nearest, show, unknown_key_at
from headrace.job.rules.raw_access import (
    Data,
    as_list,
    as_names,
    enabled,
    entry_points,
    group_entries,
    group_names,
    groups_of_channel,
    host_counts,
    mapping,
    pick,
    quoted,
    worlds,
)
from headrace.sagemaker_parameters import HOMOGENEOUS

MAX_HOSTS = 1000  # for so many the coordinator is measured (bench/hosts.py)
DATA_SERVICES = ("feed", "tf_data")

Rule = Callable[[Data], Iterator[Finding]]


_SIZES = (
    ("hyperparameters", 0, 100, "hyperparameters"),
    ("environment", 0, 100, "variables"),
    ("instance_groups", 1, 5, "instance groups"),
    ("inputs", 1, 20, "channels"),
    ("distribution", 0, 5, "distributions"),
    ("subnets", 1, 16, "subnets"),
    ("security_group_ids", 1, 5, "security groups"),
    ("metric_definitions", 0, 40, "metrics"),
    ("tags", 0, 50, "tags"),
)
_LIMITED = frozenset(key for key, _, _, _ in _SIZES)
_READ = 200  # items of a list or mapping that the other rules look at; it is refused for its size anyway


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


def budget(data: Data) -> Iterator[Finding]:
    """Every instance type of a job with a budget has a list price in the budget's region."""
    section = mapping(data, "budget")
    region = section.get("region", DEFAULT_REGION)
    if section.get("max_cost") is None or not isinstance(region, str) or region not in regions():
        return
    for name in dict.fromkeys(_types(data)):
        if price_of(name, region) is not None:
            continue
        others = [each for each in regions() if price_of(name, each) is not None]
        hint = f"a price is known in {', '.join(others)}: name that region in budget" if others else ""
        instead = "limit the time with stopping_condition: {max_run: seconds}"
        message = f"needs a list price of every instance type; none of {name} in {region} is known"
        yield Finding(("budget", "max_cost"), message, hint=f"{hint}; or {instead}" if hint else instead)


def _types(data: Data) -> Iterator[str]:
    groups = data.get("instance_groups")
    given = [data.get("instance_type")]
    if isinstance(groups, (list, tuple)):
        given += [pick(group, "instance_type", "type")[1] for group in groups]
    yield from (name for name in given if isinstance(name, str))


def check(data: Data) -> list[Finding]:
    """Returns what is broken between the keys of a job."""
    short = shortened(data)
    return [*sizes(data), *chain.from_iterable(rule(short) for rule in RULES)]


def shortened(data: Data) -> dict[str, object]:
    """Returns a job without the far ends of lists and mappings that are much too long."""
    return {key: _head(value) if key in _LIMITED else value for key, value in data.items()}


def _head(value: object) -> object:
    if isinstance(value, Mapping):
        return value if len(value) <= _READ else dict(islice(value.items(), _READ))
    return value[:_READ] if isinstance(value, (list, tuple)) else value


def program(data: Data) -> Iterator[Finding]:
    """There is something to run, in one form, and code where it is needed."""
    entry_point, command, image = (data.get(key) for key in ("entry_point", "command", "image_uri"))
    own = [group for group in _groups(data) if isinstance(group, Mapping) and group.get("entry_point")]
    if command and entry_point:
        yield Finding(("command",), "cannot be used together with entry_point", hint="keep one of the two")
    elif not (command or entry_point or image) and (not own or len(own) < len(_groups(data))):
        yield Finding(("entry_point",), "is required", hint="name a script in source_dir, or give a command")
    if data.get("source_dir") is None and not image:  # an image may hold the code
        for _, text in entry_points(data):
            if not path_types.is_file(text):
                yield Finding(("source_dir",), f"is required: {text!r} is a module or a package in it")
                return


def scripts(data: Data) -> Iterator[Finding]:
    """Entry points lie inside `source_dir`; without it they lie side by side, under names of their own."""
    named: dict[str, PurePosixPath] = {}
    for path, text in entry_points(data):
        script = PurePosixPath(text)
        if not path_types.is_file(text):
            continue
        if data.get("source_dir") is not None:
            if path_types.leads_out(text):
                yield Finding(path, path_types.OUTSIDE, repr(text), path_types.INSIDE)
        elif (first := named.setdefault(script.name, script)) != script:
            message = f"must have another name than {str(first)!r}: without source_dir the two would lie side by side"
            yield Finding(path, message, repr(text), "name the folder that holds both: source_dir")
    for index, other in enumerate(as_list(data.get("dependencies"))):
        if isinstance(other, str) and PurePosixPath(other).name in named:
            yield Finding(("dependencies", index), "must have another name than the entry point", repr(other))


def instances(data: Data) -> Iterator[Finding]:
    """Machines are given by groups, or by type and count."""
    single = [key for key in ("instance_type", "instance_count") if data.get(key) is not None]
    if data.get("instance_groups") is not None:
        if single:
            message = "InstanceType or InstanceCount cannot be specified with InstanceGroups"
            hint = "keep instance_groups, or instance_type and instance_count"
            yield Finding((single[0],), message, show(data[single[0]]), hint, code="ValidationException")
    elif not single:
        message = "instance_count and instance_type must be set if instance_groups is not set"
        hint = "for two kinds of machines write instance_groups: a list of name, type and count"
        yield Finding(("instance_groups",), message, hint=hint, code="ValueError")
    elif len(single) == 1:
        missing = "instance_count" if single == ["instance_type"] else "instance_type"
        message = "instance_count and instance_type must be set if instance_groups is not set"
        yield Finding((missing,), message, code="ValueError")


def sizes(data: Data) -> Iterator[Finding]:
    """Lists and mappings have limits."""
    for key, low, high, what in _SIZES:
        value = data.get(key)
        if key == "distribution" and isinstance(value, Mapping):
            continue  # one of them, written as itself
        if isinstance(value, (Mapping, list, tuple)) and not low <= len(value) <= high:
            hint = "leave inputs out when the job has no channel" if key == "inputs" and not value else ""
            allowed = f"{low} to {high}" if low else f"at most {high}"
            yield Finding((key,), f"must have {allowed} {what}", f"{len(value)}", hint)


def metric_names(data: Data) -> Iterator[Finding]:
    """Every metric definition has a name of its own: the figures of a run go by it."""
    found = data.get("metric_definitions")
    seen: dict[str, int] = {}
    for index, each in enumerate(found if isinstance(found, (list, tuple)) else ()):
        spelt, name = pick(each, "name", "Name")
        if not isinstance(name, str):
            continue
        if name in seen:
            hint = (
                f"metric_definitions[{seen[name]}] has it; one regex can match several forms: (?:loss|cost)=([0-9.]+)"
            )
            message = "must be different from the other metrics'"
            yield Finding(("metric_definitions", index, spelt), message, show(name), hint)
        seen.setdefault(name, index)


def group_sizes(data: Data) -> Iterator[Finding]:
    """A group's own values and the job's together obey the limits of a job."""
    for key, what in (("hyperparameters", "hyperparameters"), ("environment", "variables")):
        for index, group in enumerate(_groups(data)):
            own = mapping(group, key) if isinstance(group, Mapping) else {}
            total = len({*own, *mapping(data, key)})
            if own and total > 100:
                message = f"a group must have at most 100 {what}, the job's included"
                yield Finding(("instance_groups", index, key), message, f"{total}")


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


def hosts(data: Data, most: int = MAX_HOSTS, where: str = "") -> Iterator[Finding]:
    """A job has at most so many hosts, where they are in this way."""
    counts: list[object] = [data.get("instance_count")]
    groups = data.get("instance_groups")
    if isinstance(groups, (list, tuple)):
        counts = [pick(group, "instance_count", "count")[1] for group in groups]
    total = sum(count for count in counts if isinstance(count, int) and not isinstance(count, bool) and count > 0)
    if total > most:
        key = "instance_count" if groups is None else "instance_groups"
        yield Finding((key,), f"a job can have at most {most} hosts{where}", f"{total} hosts")


def references(data: Data) -> Iterator[Finding]:
    """Every group that is named exists, and is named once in its list."""
    known = group_names(data)
    for path, names in _references(data):
        if not names:
            yield Finding(path, "must name at least one group", "[]", "leave it out, or name a group")
        seen: set[str] = set()
        for index, name in enumerate(names[:_READ]):
            if not isinstance(name, str):
                continue
            if name in seen:
                yield Finding((*path, index), "names a group twice", repr(name))
            seen.add(name)
            yield from _known((*path, index), name, known)
    for option in ("cpu_sets", "cpu_shares", "network", "gpus"):
        for name in mapping(data, "engines", "local", option):
            yield from _known(("engines", "local", option, name), name, known)
    for engine in ("slurm", "kubernetes"):
        for name in mapping(data, "engines", engine, "groups"):
            yield from _known(("engines", engine, "groups", name), name, known)


def order(data: Data) -> Iterator[Finding]:
    """Groups that wait for each other do so in an order that ends."""
    waits: dict[str, tuple[Path, list[str]]] = {}
    for path, name in group_entries(data):
        group = _groups(data)[int(path[1])]
        waits.setdefault(name, ((*path[:2], "depends_on"), as_names(pick(group, "depends_on")[1])))
    for name, (path, _) in waits.items():
        chain_of_names = _cycle(name, {key: names for key, (_, names) in waits.items()})
        if chain_of_names:
            message = f"the group would wait for itself: {' -> '.join(chain_of_names)}"
            yield Finding(path, message, hint="leave one of these groups out of depends_on")


def _cycle(start: str, waits: Mapping[str, list[str]]) -> list[str]:
    """Returns the names from `start` back to it; empty when no way leads back."""
    ways = [[start]]
    seen = set()
    while ways:
        way = ways.pop()
        for name in waits.get(way[-1], []):
            if name == start:
                return [*way, name]
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []


def completion(data: Data) -> Iterator[Finding]:
    """A completion holds something."""
    if isinstance(data.get("completion"), Mapping) and not data["completion"]:
        hint = "name the groups that must succeed; or leave completion out"
        yield Finding(("completion", "instance_groups"), "is required", hint=hint)


def waiting(data: Data) -> Iterator[Finding]:
    """`max_wait`, which counts waiting and running, is at least `max_run`."""
    section = mapping(data, "stopping_condition")
    longest, run = section.get("max_wait"), section.get("max_run", MAX_RUN_DEFAULT)
    if isinstance(longest, int) and isinstance(run, int) and longest < run:
        message = f"must be at least max_run, which is {run}"
        yield Finding(("stopping_condition", "max_wait"), message, show(longest))


def service(data: Data) -> Iterator[Finding]:
    """What the service wants together comes together; labels differ."""
    network = [key for key in ("subnets", "security_group_ids") if data.get(key)]
    if len(network) == 1:
        other = "security_group_ids" if network == ["subnets"] else "subnets"
        yield Finding((other,), f"is required together with {network[0]}")
    seen: set[object] = set()
    tags = data.get("tags")
    for index, tag in enumerate(tags if isinstance(tags, (list, tuple)) else ()):
        key, name = pick(tag, "key", "Key")
        if isinstance(name, str) and name in seen:
            yield Finding(("tags", index, key), "names a tag twice", repr(name))
        seen.add(name if isinstance(name, str) else None)


def data_service(data: Data) -> Iterator[Finding]:
    """A data service that has groups is enabled, and one that is enabled has groups."""
    section = mapping(data, "data_service")
    names = section.get("instance_groups")
    ways = [section.get(way) for way in DATA_SERVICES]
    switches = [pick(way, "enabled")[1] for way in ways]
    off = all(way is None or switch is False for way, switch in zip(ways, switches, strict=True))
    others = section.keys() - {*DATA_SERVICES, "instance_groups"}
    where = ("data_service", "instance_groups")
    if all(switch is True for switch in switches):
        message = "feed and tf_data cannot be used together"
        yield Finding(("data_service", "tf_data"), message, hint="keep one: feed for PyTorch, tf_data for TensorFlow")
    if names is not None and off and not others:
        today = "write feed: {enabled: true} or tf_data: {enabled: true}, or leave data_service out"
        yield Finding(where, "names groups while no data service is enabled", show(names), today)
    elif any(switch is True for switch in switches) and names is None and len(group_names(data)) > 1:
        yield Finding(where, f"is required in a job with several groups; they are {quoted(group_names(data))}")


def cpus(data: Data) -> Iterator[Finding]:
    """CPU sets and CPU shares exclude each other; shares are for all groups."""
    local = mapping(data, "engines", "local")
    if local.get("cpu_sets") and local.get("cpu_shares"):
        message = "cpu_sets and cpu_shares cannot be used together"
        yield Finding(("engines", "local", "cpu_shares"), message, hint="keep one of the two")
    shares = mapping(data, "engines", "local", "cpu_shares")
    missing = [name for name in group_names(data) if name not in shares]
    if shares and missing:
        message = f"must give a weight to every group; missing: {', '.join(missing)}"
        yield Finding(("engines", "local", "cpu_shares"), message)


def network(data: Data) -> Iterator[Finding]:
    """A bandwidth needs hosts that have a network of their own."""
    local = mapping(data, "engines", "local")
    if local.get("network") and local.get("isolation") in {"none", "shared_network"}:
        hint = "write isolation: namespace, or leave network out"
        yield Finding(("engines", "local", "network"), "is possible with isolation namespace only", hint=hint)


def other_engines(data: Data) -> Iterator[Finding]:
    """What is not headrace's own under `engines` has the name of an installed engine, which knows what it means."""
    engines = mapping(data, "engines")
    for name in engines.keys() - known_keys(("engines",), JobFields).keys():
        if name not in engine_names():
            yield unknown_key_at(("engines", name), JobFields)
        elif not isinstance(engines[name], Mapping):
            yield Finding(("engines", name), "must be a mapping", show(engines[name]))


def ports(data: Data) -> Iterator[Finding]:
    """Every service has a port of its own."""
    taken: dict[int, str] = {}
    for name, port in mapping(data, "engines", "local", "ports").items():
        if isinstance(port, int) and name in LocalPorts.model_fields:
            if port in taken:
                yield Finding(
                    ("engines", "local", "ports", name), f"must differ from the {taken[port]} port", show(port)
                )
            taken.setdefault(port, name)


def _references(data: Data) -> Iterator[tuple[Path, Sequence[object]]]:
    for name, channel in mapping(data, "inputs").items():
        key, names = groups_of_channel(channel)
        if isinstance(names, (list, tuple)):
            yield ("inputs", name, key), names
    for section in ("data_service", "completion"):
        names = mapping(data, section).get("instance_groups")
        if isinstance(names, (list, tuple)):
            yield (section, "instance_groups"), names
    for path, world in worlds(data):
        names = world.get("instance_groups")
        if isinstance(names, (list, tuple)):
            yield (*path, "instance_groups"), names
    for index, group in enumerate(_groups(data)):
        names = pick(group, "depends_on")[1]
        if isinstance(names, (list, tuple)) and names:
            yield ("instance_groups", index, "depends_on"), names


def _groups(data: Data) -> Sequence[object]:
    groups = data.get("instance_groups")
    return groups if isinstance(groups, (list, tuple)) else ()


def _known(path: Path, name: str, known: Sequence[str]) -> Iterator[Finding]:
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {near!r}?" if near else ""
        rule = f"must be the name of an instance group: {quoted(known)}"
        if path[0] == "distribution":  # in the words of SageMaker's SDK
            sdk = f"Invalid training instance group {name} !"
            if known == [HOMOGENEOUS]:
                sdk = "Instance groups not specified in the estimator !"
            yield Finding(path, f"{sdk} It {rule}", repr(name), hint, code="ValueError")
        else:
            yield Finding(path, rule, repr(name), hint)


def channels(data: Data) -> Iterator[Finding]:
    """All channels name groups, or none does; no two have one variable SM_CHANNEL_*."""
    with_groups: list[str] = []
    without: list[str] = []
    variables: dict[str, str] = {}
    for name, channel in mapping(data, "inputs").items():
        if isinstance(channel, (str, Mapping)):
            (with_groups if groups_of_channel(channel)[1] is not None else without).append(name)
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
        hint = "give instance_groups to all channels, or to none"
        yield Finding(("inputs", without[0]), message, hint=hint, code="ValidationException")


def modes(data: Data) -> Iterator[Finding]:
    """Streams have options that folders have not."""
    for name, channel in mapping(data, "inputs").items():
        if not isinstance(channel, Mapping):
            continue
        path = ("inputs", name)
        mode = channel.get("input_mode") or data.get("input_mode") or "File"
        augmented = channel.get("s3_data_type") == "AugmentedManifestFile"
        hint = "write input_mode: Pipe, or leave it out"
        for keys, value in (
            (("compression", "compression_type"), "Gzip"),
            (("record_wrapping", "record_wrapper_type"), "RecordIO"),
        ):
            key, given = pick(channel, *keys)
            if given == value and mode != "Pipe":
                yield Finding((*path, key), f"{value} is possible with input_mode Pipe only", show(given), hint)
        if augmented and mode != "Pipe":
            message = "AugmentedManifestFile is possible with input_mode Pipe only"
            yield Finding((*path, "s3_data_type"), message, hint=hint)
        names = channel.get("attribute_names")
        if augmented and not names:
            hint = "name the attributes to stream, such as [source-ref, label]"
            yield Finding((*path, "attribute_names"), "is required with AugmentedManifestFile", hint=hint)
        elif names and not augmented:
            message = "is possible with s3_data_type AugmentedManifestFile only"
            yield Finding((*path, "attribute_names"), message, show(names))
        if isinstance(names, (list, tuple)) and len(names) > 16:
            yield Finding((*path, "attribute_names"), "must have at most 16 attributes", f"{len(names)}")


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


RULES: tuple[Rule, ...] = (
    program,
    scripts,
    instances,
    group_sizes,
    metric_names,
    unique_groups,
    hosts,
    references,
    order,
    channels,
    modes,
    distribution,
    one_world_a_group,
    data_service,
    data_hosts,
    completion,
    waiting,
    budget,
    service,
    cpus,
    network,
    ports,
    other_engines,
)
