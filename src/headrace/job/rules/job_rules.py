"""The rules between the keys of a job.

Each rule takes the job without what is wrong in it (`headrace.job.problems.finding.fitting`: None stands there) and
yields what is broken. `fields` reports what is wrong in itself. So all rules run on any input, and all problems come
out at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import PurePosixPath

from headrace.catalog.prices import price_of, regions
from headrace.job.find_engine import engine_names
from headrace.job.model import path_types
from headrace.job.model.fields import JobFields
from headrace.job.model.job_topology import Structure, entry_points, module_to_run
from headrace.job.model.parts import Distribution
from headrace.job.problems.finding import Finding, Path, nearest, show, unknown_key_at
from headrace.sagemaker_parameters import HOMOGENEOUS

MAX_HOSTS = 1000  # for so many the coordinator is measured (bench/hosts.py)
NOTHING_ENABLED = "Don't set training instance groups while no distribution strategies enabled!"

Rule = Callable[[Structure], Iterator[Finding]]


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


def check(job: Structure) -> Iterator[Finding]:
    """Yields what is broken between the keys of a job."""
    return chain.from_iterable(rule(job) for rule in RULES)


def shortened(data: Mapping[str, object]) -> dict[str, object]:
    """Returns a job without the far ends of lists and mappings that are much too long, and without keys of no value."""
    return {key: _head(value) if key in _LIMITED else value for key, value in data.items() if value is not None}


def _head(value: object) -> object:
    if isinstance(value, Mapping):
        return value if len(value) <= _READ else dict(islice(value.items(), _READ))
    return value[:_READ] if isinstance(value, (list, tuple)) else value


def sizes(data: Mapping[str, object]) -> Iterator[Finding]:
    """Lists and mappings have limits."""
    for key, low, high, what in _SIZES:
        value = data.get(key)
        if key == "distribution" and isinstance(value, Mapping):
            continue  # one of them, written as itself
        if isinstance(value, (Mapping, list, tuple)) and not low <= len(value) <= high:
            hint = "leave inputs out when the job has no channel" if key == "inputs" and not value else ""
            allowed = f"{low} to {high}" if low else f"at most {high}"
            yield Finding((key,), f"must have {allowed} {what}", f"{len(value)}", hint)


def group_names(job: Structure) -> list[str]:
    """Returns the names of the job's groups, each once."""
    if "instance_groups" not in job.model_fields_set:
        return [HOMOGENEOUS]
    names = (group.instance_group_name for group in job.instance_groups)
    return list(dict.fromkeys(name for name in names if name is not None))


def _host_counts(job: Structure) -> dict[str, int]:
    """Returns the hosts of every group whose count is right."""
    return {group.instance_group_name: group.instance_count for group in job.groups if group.instance_count}


def quoted(names: Sequence[str]) -> str:
    """Lists names for a message."""
    return ", ".join(repr(name) for name in names) or "none is given"


def data_hosts(job: Structure) -> Iterator[Finding]:
    """Data hosts that come and go do nothing else, and each of them holds all of the data."""
    where = ("data_service", "feed", "workers")
    workers = job.data_service.feed and job.data_service.feed.workers
    if not workers:
        return
    names, counts = job.data_service.instance_groups, _host_counts(job)
    if not names:
        yield Finding(where, "needs groups of data hosts: name them in data_service.instance_groups")
        return
    if workers.min and workers.max and workers.min > workers.max:
        yield Finding((*where, "min"), f"must be at most max, which is {workers.max}", show(workers.min))
    most = sum(counts.get(name, 0) for name in names)
    for key, count in (("min", workers.min), ("max", workers.max)):
        if count and 0 < most < count:
            message = f"must be at most the {most} instances of the groups of data_service"
            yield Finding((*where, key), message, show(count), "raise the number of instances: there are no more")
    trains = set((job.completion and job.completion.instance_groups) or ())
    trains.update(name for world in job.distribution for name in world.instance_groups or ())
    for name in filter(None, names):
        if name in trains or not counts.keys() - set(names):
            yield Finding(where, f"is for hosts that only make batches, and {name!r} trains")
    for name, channel in job.inputs.items():
        if channel.distribution == "ShardedByS3Key":
            message = f"is not possible with the channel {name!r}, of which every host has another part"
            yield Finding(where, message, hint="write distribution: FullyReplicated, or leave workers out")


def budget(job: Structure) -> Iterator[Finding]:
    """Every instance type of a job with a budget has a list price in the budget's region."""
    if job.budget is None or not job.budget.max_cost or not job.budget.region:
        return
    region = job.budget.region
    for name in dict.fromkeys(group.instance_type for group in job.groups if group.instance_type):
        if price_of(name, region) is not None:
            continue
        others = [other for other in regions() if price_of(name, other) is not None]
        hint = f"a price is known in {', '.join(others)}: name that region in budget" if others else ""
        instead = "limit the time with stopping_condition: {max_run: seconds}"
        message = f"needs a list price of every instance type; none of {name} in {region} is known"
        yield Finding(("budget", "max_cost"), message, hint=f"{hint}; or {instead}" if hint else instead)


def program(job: Structure) -> Iterator[Finding]:
    """There is something to run, in one form, and code where it is needed."""
    given = job.model_fields_set
    alone = [group for group in job.instance_groups if group.entry_point is None]
    if {"command", "entry_point"} <= given:
        yield Finding(("command",), "cannot be used together with entry_point", hint="keep one of the two")
    elif not given & {"command", "entry_point", "image_uri"} and (alone or not job.instance_groups):
        yield Finding(("entry_point",), "is required", hint="name a script in source_dir, or give a command")
    if not given & {"source_dir", "image_uri"} and (text := module_to_run(job)):  # an image may hold the code
        yield Finding(("source_dir",), f"is required: {text!r} is a module or a package in it")


def scripts(job: Structure) -> Iterator[Finding]:
    """Entry points lie inside `source_dir`; without it they lie side by side, under names of their own."""
    named: dict[str, PurePosixPath] = {}
    for path, text in entry_points(job):
        script = PurePosixPath(text)
        if not path_types.is_file(text):
            continue
        if "source_dir" in job.model_fields_set:
            if path_types.leads_out(text):
                yield Finding(path, path_types.OUTSIDE, repr(text), path_types.INSIDE)
        elif (first := named.setdefault(script.name, script)) != script:
            message = f"must have another name than {str(first)!r}: without source_dir the two would lie side by side"
            yield Finding(path, message, repr(text), "name the folder that holds both: source_dir")
    for index, other in enumerate(job.dependencies):
        if other and PurePosixPath(other).name in named:
            yield Finding(("dependencies", index), "must have another name than the entry point", repr(other))


def instances(job: Structure) -> Iterator[Finding]:
    """Machines are given by groups, or by type and count."""
    single = [key for key in ("instance_type", "instance_count") if key in job.model_fields_set]
    if "instance_groups" in job.model_fields_set:
        if single:
            message = "InstanceType or InstanceCount cannot be specified with InstanceGroups"
            hint = "keep instance_groups, or instance_type and instance_count"
            yield Finding((single[0],), message, show(getattr(job, single[0])), hint, code="ValidationException")
    elif len(single) < 2:
        missing = {"instance_type": "instance_count", "instance_count": "instance_type"}
        message = "instance_count and instance_type must be set if instance_groups is not set"
        hint = "" if single else "for two kinds of machines write instance_groups: a list of name, type and count"
        key = missing[single[0]] if single else "instance_groups"
        yield Finding((key,), message, hint=hint, code="ValueError")


def metric_names(job: Structure) -> Iterator[Finding]:
    """Every metric definition has a name of its own: the figures of a run go by it."""
    for index, name, first in _twice([definition.name for definition in job.metric_definitions]):
        hint = f"metric_definitions[{first}] has it; one regex can match several forms: (?:loss|cost)=([0-9.]+)"
        message = "must be different from the other metrics'"
        yield Finding(("metric_definitions", index, "name"), message, show(name), hint)


def _twice(names: Sequence[str | None]) -> Iterator[tuple[int, str, int]]:
    """Yields place and name of each that comes a second time, and its first place."""
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if name is not None and first.setdefault(name, index) != index:
            yield index, name, first[name]


def group_sizes(job: Structure) -> Iterator[Finding]:
    """A group's own values and the job's together obey the limits of a job."""
    for key, what in (("hyperparameters", "hyperparameters"), ("environment", "variables")):
        for index, group in enumerate(job.instance_groups):
            own = getattr(group, key)
            total = len({*own, *getattr(job, key)})
            if own and total > 100:
                message = f"a group must have at most 100 {what}, the job's included"
                yield Finding(("instance_groups", index, key), message, f"{total}")


def unique_groups(job: Structure) -> Iterator[Finding]:
    """No two groups have one name."""
    for index, name, first in _twice([group.instance_group_name for group in job.instance_groups]):
        message = f"group names must be unique; instance_groups[{first}] has this name too"
        yield Finding(("instance_groups", index, "instance_group_name"), message, repr(name))


def hosts(job: Structure, most: int = MAX_HOSTS, where: str = "") -> Iterator[Finding]:
    """A job has at most so many hosts, where they are in this way."""
    total = sum(group.instance_count or 0 for group in job.groups)
    if total > most:
        key = "instance_groups" if job.instance_groups else "instance_count"
        yield Finding((key,), f"a job can have at most {most} hosts{where}", f"{total} hosts")


def references(job: Structure) -> Iterator[Finding]:
    """Every group that is named exists, and is named once in its list."""
    groups = group_names(job)
    for path, names in _references(job):
        if not names:
            yield Finding(path, "must name at least one group", "[]", "leave it out, or name a group")
        for index, name, _ in _twice(names[:_READ]):
            yield Finding((*path, index), "names a group twice", repr(name))
        for index, name in enumerate(names[:_READ]):
            yield from _known((*path, index), name, groups)
    local = job.engines.local
    for option, by_group in (
        *((("local", key), getattr(local, key)) for key in ("cpu_sets", "cpu_shares", "network", "gpus")),
        (("slurm", "groups"), job.slurm.groups),
        (("kubernetes", "groups"), job.kubernetes.groups),
    ):
        for name in by_group:
            yield from _known(("engines", *option, name), name, groups)


def _references(job: Structure) -> Iterator[tuple[Path, tuple[str, ...]]]:
    named: list[tuple[Path, tuple[str, ...] | None]] = [
        (("inputs", name, "instance_groups"), channel.instance_groups) for name, channel in job.inputs.items()
    ]
    named.append((("data_service", "instance_groups"), job.data_service.instance_groups))
    if job.completion:
        named.append((("completion", "instance_groups"), job.completion.instance_groups))
    for index, world in enumerate(job.distribution):
        named.append((("distribution", index, "instance_groups"), world.instance_groups))
    for index, group in enumerate(job.instance_groups):
        named.append((("instance_groups", index, "depends_on"), group.depends_on or None))
    yield from ((path, names) for path, names in named if names is not None)


def _known(path: Path, name: str | None, known: Sequence[str]) -> Iterator[Finding]:
    if name is not None and name not in known:
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


def order(job: Structure) -> Iterator[Finding]:
    """Groups that wait for each other do so in an order that ends."""
    waits = {group.instance_group_name: group.depends_on for group in reversed(job.instance_groups)}
    for index, group in enumerate(job.instance_groups):
        if group.instance_group_name and (cycle := _cycle(group.instance_group_name, waits)):
            message = f"the group would wait for itself: {' -> '.join(cycle)}"
            path = ("instance_groups", index, "depends_on")
            yield Finding(path, message, hint="leave one of these groups out of depends_on")


def _cycle(start: str, waits: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the names from `start` back to it; empty when no way leads back."""
    ways = [[start]]
    seen = set()
    while ways:
        way = ways.pop()
        for name in waits.get(way[-1], ()):
            if name == start:
                return [*way, name]
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []


def channels(job: Structure) -> Iterator[Finding]:
    """All channels name groups, or none does; no two have one variable SM_CHANNEL_*."""
    with_groups = [name for name, channel in job.inputs.items() if channel.instance_groups is not None]
    without = [name for name in job.inputs if name not in with_groups]
    variables: dict[str, str] = {}
    for name in job.inputs:
        variable = f"SM_CHANNEL_{name.upper()}"
        if (first := variables.setdefault(variable, name)) != name:
            message = f"has the same variable {variable} as the channel {first!r}"
            yield Finding(("inputs", name), message, hint="choose names that differ in more than case")
    if with_groups and without:
        message = (
            f"Some channels have assigned instance groups: [{', '.join(with_groups)}] "
            f"while others not: [{', '.join(without)}]"
        )
        hint = "give instance_groups to all channels, or to none"
        yield Finding(("inputs", without[0]), message, hint=hint, code="ValidationException")


def modes(job: Structure) -> Iterator[Finding]:
    """Streams have options that folders have not."""
    hint = "write input_mode: Pipe, or leave it out"
    for name, channel in job.inputs.items():
        path = ("inputs", name)
        piped = job.input_mode_of(name) == "Pipe"
        augmented = channel.s3_data_type == "AugmentedManifestFile"
        for key, value in (("compression", "Gzip"), ("record_wrapping", "RecordIO")):
            if getattr(channel, key) == value and not piped:
                yield Finding((*path, key), f"{value} is possible with input_mode Pipe only", show(value), hint)
        if augmented and not piped:
            message = "AugmentedManifestFile is possible with input_mode Pipe only"
            yield Finding((*path, "s3_data_type"), message, hint=hint)
        names = channel.attribute_names
        if augmented and not names:
            example = "name the attributes to stream, such as [source-ref, label]"
            yield Finding((*path, "attribute_names"), "is required with AugmentedManifestFile", hint=example)
        elif names and not augmented:
            message = "is possible with s3_data_type AugmentedManifestFile only"
            yield Finding((*path, "attribute_names"), message, show([*names]))
        if len(names) > 16:
            yield Finding((*path, "attribute_names"), "must have at most 16 attributes", f"{len(names)}")


def distribution(job: Structure) -> Iterator[Finding]:
    """A distribution that spans groups is enabled, once, and one that is enabled says which groups it spans."""
    groups, counts = group_names(job), _host_counts(job)
    for index, world in enumerate(job.distribution):
        path = ("distribution", index)
        where = (*path, "instance_groups")
        if len(world.ways) > 1:
            message = f"one way of starting ranks may be enabled at a time; there are {', '.join(world.ways)}"
            hint = "write a list of distributions with different instance_groups, or keep one"
            yield Finding(path, message, hint=hint)
        elif not world.ways and world.instance_groups is not None and _is_off(world):
            hint = "write torch_distributed: {enabled: true}, or leave distribution out"
            yield Finding(where, NOTHING_ENABLED, show([*world.instance_groups]), hint, code="ValueError")
        elif world.ways and world.instance_groups is None and len(groups) > 1:
            yield Finding(where, f"is required in a job with several groups; they are {quoted(groups)}")
        elastic = world.torch_distributed and world.torch_distributed.elastic
        total = sum(counts.get(name, 0) for name in world.instance_groups or counts)
        if elastic and elastic.min_hosts and elastic.min_hosts > total > 0:
            message = f"must be at most the hosts of the distribution, which are {total}"
            yield Finding((*path, "torch_distributed", "elastic", "min_hosts"), message, show(elastic.min_hosts))


def _is_off(world: Distribution) -> bool:
    ways = (getattr(world, key, None) for key in world.model_fields_set - {"instance_groups"})
    return all(getattr(way, "enabled", None) is False for way in ways)


def one_world_a_group(job: Structure) -> Iterator[Finding]:
    """The ranks of a group belong to one distribution at most."""
    worlds: dict[str, int] = {}
    for number, world in enumerate(job.distribution):
        names = world.instance_groups
        for index, name in enumerate(group_names(job) if names is None else names) if world.ways else ():
            if name is not None and worlds.setdefault(name, number) != number:
                where = ("distribution", number, "instance_groups")
                message = f"the group is in distribution[{worlds[name]}] already"
                hint = "a group's ranks belong to one distribution"
                yield Finding(where if names is None else (*where, index), message, repr(name), hint)


def data_service(job: Structure) -> Iterator[Finding]:
    """A data service that has groups is enabled, and one that is enabled has groups."""
    section, where = job.data_service, ("data_service", "instance_groups")
    services = [service for service in (section.feed, section.tf_data) if service is not None]
    enabled = [service for service in services if service.enabled]
    unknown = section.model_fields_set - type(section).model_fields.keys()
    if len(enabled) > 1:
        message = "feed and tf_data cannot be used together"
        yield Finding(("data_service", "tf_data"), message, hint="keep one: feed for PyTorch, tf_data for TensorFlow")
    if section.instance_groups is not None and not unknown and all(service.enabled is False for service in services):
        today = "write feed: {enabled: true} or tf_data: {enabled: true}, or leave data_service out"
        message = "names groups while no data service is enabled"
        yield Finding(where, message, show([*section.instance_groups]), today)
    elif enabled and section.instance_groups is None and len(group_names(job)) > 1:
        yield Finding(where, f"is required in a job with several groups; they are {quoted(group_names(job))}")


def completion(job: Structure) -> Iterator[Finding]:
    """A completion holds something."""
    if job.completion is not None and not job.completion.model_fields_set:
        hint = "name the groups that must succeed; or leave completion out"
        yield Finding(("completion", "instance_groups"), "is required", hint=hint)


def waiting(job: Structure) -> Iterator[Finding]:
    """`max_wait`, which counts waiting and running, is at least `max_run`."""
    longest, run = job.stopping_condition.max_wait, job.stopping_condition.max_run
    if longest and run and longest < run:
        message = f"must be at least max_run, which is {run}"
        yield Finding(("stopping_condition", "max_wait"), message, show(longest))


def service(job: Structure) -> Iterator[Finding]:
    """What the service wants together comes together; labels differ."""
    network = [key for key in ("subnets", "security_group_ids") if getattr(job, key)]
    if len(network) == 1:
        other = "security_group_ids" if network == ["subnets"] else "subnets"
        yield Finding((other,), f"is required together with {network[0]}")
    for index, name, _ in _twice([tag.key for tag in job.tags]):
        yield Finding(("tags", index, "key"), "names a tag twice", repr(name))


def local_options(job: Structure) -> Iterator[Finding]:
    """CPU sets and shares exclude each other; shares are for all groups; a bandwidth needs a network of one's own."""
    local, path = job.engines.local, ("engines", "local")
    if local.cpu_sets and local.cpu_shares:
        message = "cpu_sets and cpu_shares cannot be used together"
        yield Finding((*path, "cpu_shares"), message, hint="keep one of the two")
    missing = [name for name in group_names(job) if name not in local.cpu_shares]
    if local.cpu_shares and missing:
        yield Finding((*path, "cpu_shares"), f"must give a weight to every group; missing: {', '.join(missing)}")
    if local.network and local.isolation in ("none", "shared_network"):
        hint = "write isolation: namespace, or leave network out"
        yield Finding((*path, "network"), "is possible with isolation namespace only", hint=hint)
    names: dict[int, str] = {}
    for name, port in local.ports:
        if port and (first := names.setdefault(port, name)) != name:
            yield Finding((*path, "ports", name), f"must differ from the {first} port", show(port))


def other_engines(job: Structure) -> Iterator[Finding]:
    """What is not headrace's own under `engines` has the name of an installed engine, which knows what it means."""
    for name, options in (job.engines.model_extra or {}).items():
        if name not in engine_names():
            yield unknown_key_at(("engines", name), JobFields, also=engine_names())
        elif not isinstance(options, Mapping):
            yield Finding(("engines", name), "must be a mapping", show(options))


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
    local_options,
    other_engines,
)
