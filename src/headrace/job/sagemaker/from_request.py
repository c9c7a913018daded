"""From a CreateTrainingJob request to the data of a job.

What no key of a job holds is kept, at its place, as `request_extras`. Nothing is checked here: `check` and the rules
of the job do that, and a value of the wrong type stays where it was.
"""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import get_args

from headrace.job.model import field_types
from headrace.job.model.hyperparameters import decode, is_reserved
from headrace.job.model.path_types import local_form
from headrace.job.problems.finding import Finding, Path
from headrace.job.rules.raw_access import enabled
from headrace.job.sagemaker.field_map import (
    ARGUMENTS,
    CHANNEL,
    CHANNELS,
    ENTRYPOINT,
    HYPERPARAMETERS,
    LISTS,
    PREFERENCES,
    VALUES,
    get,
    put,
    take,
)
from headrace.sagemaker_parameters import GROUPS, PROGRAM, STRATEGIES, SUBMIT_DIRECTORY

_WRITTEN = ("output_path", "checkpoint_s3_uri")
_PLACES = ("s3_data", *_WRITTEN)  # keys whose values the service wants in S3
_DATA_TYPES = get_args(get_args(field_types.DataType)[0])


@dataclass
class Translated:
    """A job that was read from a request.

    Attributes:
        data: keys of a job file and their values.
        names: where in the request each of them was.
    """

    data: dict[str, object] = field(default_factory=dict)
    names: dict[Path, Path] = field(default_factory=dict)


def read_request(request: Mapping[str, object]) -> Translated:
    """Translates a request. The request itself is not changed."""
    rest = copy.deepcopy(dict(request))
    result = Translated()
    _values(rest, result)
    variables = result.data.get("environment")
    for name in variables if isinstance(variables, dict) else ():
        result.names[("environment", name)] = ("Environment", name)
    _lists(rest, result)
    _preferences(rest, result)
    _command(rest, result)
    _channels(rest, result)
    _hyperparameters(rest, result)
    if rest:
        result.data["request_extras"] = rest
    result.names[("request_extras",)] = ()
    return result


def with_places(
    data: Mapping[str, object],
    written: Callable[[str], str],
    source: Callable[[Mapping[str, object]], Mapping[str, object]],
) -> dict[str, object]:
    """Returns a job's data with the places of whoever runs it in place of those that the request names.

    Args:
        data: keys of a job file, read from a request.
        written: returns the place of what a job writes, by its URI.
        source: returns what is another of a channel, e.g. its `s3_data`.
    """
    result = dict(data)
    for key in _WRITTEN:
        if isinstance(uri := result.get(key), str):
            result[key] = written(uri)
    channels = result.get("inputs")
    if isinstance(channels, Mapping):
        result["inputs"] = {name: {**channel, **source(channel)} for name, channel in channels.items()}
    return result


def with_local_places(wrong: Iterable[Finding], read: Translated) -> Iterator[Finding]:
    """Adds how a place on this machine is given to each finding about a place that the service wants in S3."""
    keys = {place: key for key, place in read.names.items() if key[-1] in _PLACES}
    for finding in wrong:
        key = keys.get(finding.path, ())
        text = get(read.data, key) if key else None
        local = isinstance(text, str) and text and "://" not in local_form(text)
        yield replace(finding, hint=_local_way(key, str(text))) if local else finding


def _local_way(key: Path, text: str) -> str:
    steps = ("path" if step == "s3_data" else str(step) for step in key)
    name = ".".join(f'"{step}"' if "." in step else step for step in steps)
    said = shlex.quote(f"{name}={text}")
    return f"the service reads and writes S3; to have it on this machine, add --set {said}"


def _values(rest: dict[str, object], result: Translated) -> None:
    for source, target in VALUES:
        result.names[target] = source
        value = get(rest, source)
        if value not in (None, "", [], {}):
            put(result.data, target, take(rest, source))


def _lists(rest: dict[str, object], result: Translated) -> None:
    for source, key, members in LISTS:
        result.names[(key,)] = source
        items = get(rest, source)
        if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
            continue
        if not all(set(item) <= {name for name, _ in members} for item in items):
            continue  # unknown members were found already
        result.data[key] = [{ours: item[theirs] for theirs, ours in members if theirs in item} for item in items]
        for index in range(len(items)):
            result.names[(key, index)] = (*source, index)
            result.names |= {(key, index, ours): (*source, index, theirs) for theirs, ours in members}
        take(rest, source)


def _preferences(rest: dict[str, object], result: Translated) -> None:
    """Of several types that the service would choose from, the job names the first."""
    preferences = get(rest, PREFERENCES)
    first = preferences[0] if isinstance(preferences, list) and preferences else None
    if isinstance(first, dict) and not result.data.keys() & {"instance_type", "instance_groups"}:
        for name, key in (("InstanceType", "instance_type"), ("InstanceCount", "instance_count")):
            result.names[(key,)] = (*PREFERENCES, 0, name)
            if first.get(name) is not None:
                result.data.setdefault(key, first[name])


def _command(rest: dict[str, object], result: Translated) -> None:
    entrypoint, arguments = get(rest, ENTRYPOINT), get(rest, ARGUMENTS)
    result.names[("command",)] = ENTRYPOINT
    if not isinstance(entrypoint, list) or not entrypoint:
        return
    more = arguments if isinstance(arguments, list) else []
    result.data["command"] = [*entrypoint, *more]
    result.names |= {("command", index): (*ENTRYPOINT, index) for index in range(len(entrypoint))}
    result.names |= {("command", len(entrypoint) + index): (*ARGUMENTS, index) for index in range(len(more))}
    take(rest, ENTRYPOINT)  # the arguments stay: they tell where the entrypoint ends


def _channels(rest: dict[str, object], result: Translated) -> None:
    items = rest.get(CHANNELS)
    result.names[("inputs",)] = (CHANNELS,)
    if not isinstance(items, list):
        return
    channels: dict[str, object] = {}
    kept = False
    for index, item in enumerate(items):
        name = item.get("ChannelName") if isinstance(item, dict) else None
        if not isinstance(name, str) or name in channels or not _is_s3(item):
            kept = True
            continue
        channel: dict[str, object] = {}
        result.names[("inputs", name)] = (CHANNELS, index)
        for source, target in CHANNEL:
            place: Path = ("inputs", name, *target)
            result.names[place] = (CHANNELS, index, *source)
            if get(item, source) not in (None, []):
                put(channel, target, take(item, source))
        channels[name] = channel
        kept = kept or len(item) > 1
    if channels:
        result.data["inputs"] = channels
    if not kept:
        del rest[CHANNELS]


def _is_s3(item: dict[str, object]) -> bool:
    source = item.get("DataSource")
    if not isinstance(source, dict) or set(source) != {"S3DataSource"} or not isinstance(source["S3DataSource"], dict):
        return False
    return source["S3DataSource"].get("S3DataType") in _DATA_TYPES


def _hyperparameters(rest: dict[str, object], result: Translated) -> None:
    texts = rest.get(HYPERPARAMETERS)
    result.names[("hyperparameters",)] = (HYPERPARAMETERS,)
    result.names[("entry_point",)] = (HYPERPARAMETERS, PROGRAM)
    result.names[("source_dir",)] = (HYPERPARAMETERS, SUBMIT_DIRECTORY)
    result.names[("distribution",)] = (HYPERPARAMETERS,)
    if not isinstance(texts, dict):
        _program_of_environment(result)
        return
    values_found: dict[str, object] = {}
    world: dict[str, object] = {}
    for name, text in list(texts.items()):
        if not isinstance(text, str):
            continue
        value = decode(text)
        where = (HYPERPARAMETERS, name)
        if not is_reserved(name):
            values_found[name] = value
            result.names[("hyperparameters", name)] = where
        elif "command" in result.data:
            continue  # the command runs, whatever the toolkits' hyperparameters say
        elif name == PROGRAM and isinstance(value, str):
            result.data["entry_point"] = value
        elif name == SUBMIT_DIRECTORY and isinstance(value, str):
            result.data["source_dir"] = value
        elif name == GROUPS:
            world["instance_groups"] = value
        elif name in STRATEGIES:
            put(world, STRATEGIES[name], value)
            place: Path = ("distribution", *STRATEGIES[name])
            result.names[place] = where
        else:
            continue
        if json.dumps(value) == text and not (name == SUBMIT_DIRECTORY and local_form(str(value)) != value):
            take(rest, where)  # a job has it in another form: how the request wrote it is kept
    if values_found:
        result.data["hyperparameters"] = values_found
    _distribution(world, result)
    _program_of_environment(result)


def _distribution(world: dict[str, object], result: Translated) -> None:
    """Without named groups every group is a world of its own, as in SageMaker's containers."""
    libraries = world.get("smdistributed")
    if isinstance(libraries, dict) and isinstance(libraries.get("modelparallel"), dict):
        libraries["modelparallel"].setdefault("enabled", True)
    result.names[("distribution", "instance_groups")] = (HYPERPARAMETERS, GROUPS)
    groups = result.data.get("instance_groups")
    if not world:
        return
    if "instance_groups" in world or not isinstance(groups, list) or len(groups) < 2 or not enabled(world):
        result.data["distribution"] = world
        return
    names = [group.get("instance_group_name") for group in groups]
    result.data["distribution"] = [{**copy.deepcopy(world), "instance_groups": [name]} for name in names]


def _program_of_environment(result: Translated) -> None:
    """SageMaker's containers take the program from variables too."""
    variables = result.data.get("environment")
    if "command" in result.data or not isinstance(variables, dict):
        return
    for variable, key in (("SAGEMAKER_PROGRAM", "entry_point"), ("SAGEMAKER_SUBMIT_DIRECTORY", "source_dir")):
        if key not in result.data and isinstance(variables.get(variable), str) and variables[variable]:
            result.data[key] = variables[variable]
            result.names[(key,)] = ("Environment", variable)
