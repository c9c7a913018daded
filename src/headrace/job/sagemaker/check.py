"""Checks a CreateTrainingJob request: every limit of its shape, and what the service asks beyond it.

Messages are the service's own, or those of its client for a wrong type; `code` names the error it would answer with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.catalog import instance_types
from headrace.job.problems.finding import Finding, Path, show, suggestion
from headrace.job.sagemaker.shapes import (
    CREATE_TRAINING_JOB,
    Choice,
    InstanceType,
    Items,
    Record,
    Shape,
    Switch,
    Table,
    Text,
    Whole,
    compiled,
)

SERVICE = "ValidationException"
CLIENT = "ParamValidationError"
_PREFIX = "failed to satisfy constraint: "
_TYPES: dict[type, tuple[type | tuple[type, ...], str]] = {
    Text: (str, "a string"),
    Choice: (str, "a string"),
    InstanceType: (str, "a string"),
    Whole: (int, "a whole number"),
    Switch: (bool, "true or false"),
    Items: (list, "a list"),
    Table: (dict, "a mapping"),
    Record: (dict, "a mapping"),
}


def is_request(data: Mapping[str, object]) -> bool:
    """Tells a CreateTrainingJob request from a job file: by its keys."""
    telling = {"AlgorithmSpecification", "ResourceConfig", "OutputDataConfig", "InputDataConfig", "RoleArn"}
    return "TrainingJobName" in data or len(telling & data.keys()) > 1


def check_request(request: Mapping[str, object]) -> list[Finding]:
    """Returns what the service or its client would refuse of a request, at its place in the request."""
    return [*_check(request, CREATE_TRAINING_JOB, ()), *_rules(request)]


def _check(value: object, shape: Shape, path: Path) -> Iterator[Finding]:
    kind, words = _TYPES[type(shape)]
    if not isinstance(value, kind) or (isinstance(value, bool) and not isinstance(shape, Switch)):
        message = f"Invalid type for parameter, valid types: {words}"
        yield Finding(path, message, f"{show(value)}, {type(value).__name__}", code=CLIENT)
    elif isinstance(shape, Record) and isinstance(value, Mapping):
        yield from _record(value, shape, path)
    elif isinstance(shape, Items) and isinstance(value, list):
        yield from _length(len(value), shape.low, shape.high, path, f"{len(value)} items")
        for index, item in enumerate(value):
            yield from _check(item, shape.item, (*path, index))
    elif isinstance(shape, Table) and isinstance(value, Mapping):
        yield from _table(value, shape, path)
    elif isinstance(shape, Text) and isinstance(value, str):
        for message, seen in _text(value, shape):
            yield _broken(path, message, seen)
    elif isinstance(shape, Choice) and value not in shape.values:
        yield _broken(path, f"Member must satisfy enum value set: [{', '.join(shape.values)}]", show(value))
    elif isinstance(shape, InstanceType) and value not in instance_types.KNOWN:
        hint = suggestion(str(value), instance_types.KNOWN)
        message = "Member must satisfy enum value set: the instance types of SageMaker training"
        yield _broken(path, message, show(value), hint if len(hint) < 80 else "")
    elif isinstance(shape, Whole) and isinstance(value, int):
        if shape.low is not None and value < shape.low:
            yield _broken(path, f"Member must have value greater than or equal to {shape.low}", show(value))
        if shape.high is not None and value > shape.high:
            yield _broken(path, f"Member must have value less than or equal to {shape.high}", show(value))


def _record(value: Mapping[str, object], shape: Record, path: Path) -> Iterator[Finding]:
    for name, member in value.items():
        if name in shape.members:
            yield from _check(member, shape.members[name], (*path, name))
        else:
            message = f"Unknown parameter in input; {suggestion(name, shape.members)}"
            yield Finding((*path, name), message, code=CLIENT)
    for name in shape.members:
        if name in shape.required and name not in value:
            yield Finding((*path, name), "Missing required parameter in input", code=CLIENT)


def _table(value: Mapping[str, object], shape: Table, path: Path) -> Iterator[Finding]:
    yield from _length(len(value), 0, shape.high, path, f"{len(value)} entries")
    for key, text in value.items():
        for message, seen in _text(key, shape.key):
            yield _broken((*path, key), f"Map keys must satisfy constraint: [{message}]", seen)
        if not isinstance(text, str):
            yield from _check(text, shape.value, (*path, key))
            continue
        for message, seen in _text(text, shape.value):
            yield _broken((*path, key), f"Map value must satisfy constraint: [{message}]", seen)


def _text(text: str, shape: Text) -> Iterator[tuple[str, str]]:
    """Yields the message and what it shows for each limit that a text breaks. What is too long is not shown."""
    seen = f"{len(text)} characters"
    if shape.high and len(text) > shape.high:
        yield f"Member must have length less than or equal to {shape.high}", seen
    elif len(text) < shape.low:
        yield f"Member must have length greater than or equal to {shape.low}", seen
    elif shape.pattern and not compiled(shape.pattern).fullmatch(text):
        yield f"Member must satisfy regular expression pattern: {shape.pattern}", show(text)


def _length(count: int, low: int, high: int, path: Path, seen: str) -> Iterator[Finding]:
    if high and count > high:
        yield _broken(path, f"Member must have length less than or equal to {high}", seen)
    elif count < low:
        yield _broken(path, f"Member must have length greater than or equal to {low}", seen)


def _broken(path: Path, message: str, seen: str, hint: str = "") -> Finding:
    return Finding(path, _PREFIX + message, seen, hint, code=SERVICE)


def _rules(request: Mapping[str, object]) -> Iterator[Finding]:
    """What the service asks beyond the shape, and no rule of a job says."""
    if request.get("ServerlessJobConfig") is not None:
        message = "a serverless job has no instances; headrace runs jobs on instances"
        yield Finding(("ServerlessJobConfig",), message, hint="give AlgorithmSpecification and ResourceConfig instead")
        return
    for name in ("AlgorithmSpecification", "ResourceConfig", "StoppingCondition"):
        if name not in request:
            yield Finding((name,), "is required unless the job is serverless", code=SERVICE)
    algorithm, resources = request.get("AlgorithmSpecification"), request.get("ResourceConfig")
    if isinstance(algorithm, Mapping) and bool(algorithm.get("TrainingImage")) == bool(algorithm.get("AlgorithmName")):
        message = "exactly one of TrainingImage and AlgorithmName must be given"
        yield Finding(("AlgorithmSpecification", "TrainingImage"), message, code=SERVICE)
    if isinstance(resources, Mapping) and resources.get("InstancePreferences"):
        others = [("ResourceConfig", name) for name in ("InstanceType", "InstanceGroups", "InstancePlacementConfig")]
        for path in (path for path in others if resources.get(path[1])):
            yield Finding(path, f"{path[1]} cannot be specified with InstancePreferences", code=SERVICE)
        if request.get("EnableManagedSpotTraining") is True:
            message = "EnableManagedSpotTraining cannot be specified with InstancePreferences"
            yield Finding(("EnableManagedSpotTraining",), message, code=SERVICE)
    yield from _channels(request.get("InputDataConfig"))


def _channels(channels: object) -> Iterator[Finding]:
    names: set[str] = set()
    for index, channel in enumerate(channels if isinstance(channels, list) else ()):
        if not isinstance(channel, Mapping):
            continue
        name = channel.get("ChannelName")
        if isinstance(name, str) and name in names:
            path: Path = ("InputDataConfig", index, "ChannelName")
            yield Finding(path, "names a channel twice", show(name), code=SERVICE)
        names.add(str(name))
        source = channel.get("DataSource")
        if isinstance(source, Mapping) and len(source) != 1:
            path = ("InputDataConfig", index, "DataSource")
            yield Finding(path, "must have exactly one source", ", ".join(map(str, source)), code=SERVICE)
