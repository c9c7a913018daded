"""Checks a CreateTrainingJob request: every limit of its shape, and what the service asks beyond it.

Messages are the service's own, or those of its client for a wrong type; `code` names the error it would answer with.

The shape of a CreateTrainingJob request: members, types, lengths, patterns, counts.

`request_shapes.json` beside this module has them as the service's model in botocore has them; it is written by
`scripts/request_shapes.py`. Reading it is the only input here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from headrace.catalog import instance_types
from headrace.errors import Broken
from headrace.job.problems.finding import Finding, Path, show, suggestion

FILE = FilePath(__file__).with_name("request_shapes.json")

_KINDS = {"long": "integer", "timestamp": "number", "double": "number", "float": "number"}
_LINE = "[^\\n\\r\\x85\\u2028\\u2029]"  # what Java's dot matches
_SPACES = "\\u0020\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"


@dataclass(frozen=True)
class Shape:
    """One value of a request.

    Attributes:
        kind: ``structure``, ``list``, ``map``, ``string``, ``integer``, ``number`` or ``boolean``.
        low: least length, number of items or value; None means no limit.
        high: greatest of these; None means no limit.
        pattern: of a text, as the service writes it.
        enum: of a text: all that are allowed; empty means any.
        required: members of a structure that must be given.
        members: of a structure, by name.
        inner: ``member`` of a list; ``key`` and ``value`` of a map.
        name: on the wire; empty: that of the member.
        place: ``header``, ``headers`` (which begin with the name), ``querystring`` or ``uri``; empty: the body.
        payload: of a structure: the member that is the whole body.
        flat: of a list: its items stand in XML without an element around them.
    """

    kind: str
    low: int | None = None
    high: int | None = None
    pattern: str = ""
    enum: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    members: Mapping[str, Shape] = field(default_factory=dict)
    inner: Mapping[str, Shape] = field(default_factory=dict)
    name: str = ""
    place: str = ""
    payload: str = ""
    flat: bool = False


@cache
def create_training_job() -> Shape:
    """Returns the shape of the whole request."""
    return read_shape(json.loads(FILE.read_text(encoding="utf-8"))["shapes"], "CreateTrainingJobRequest")


def read_shape(shapes: Mapping[str, Any], root: str) -> Shape:
    """Returns a shape of a service's model, which does not hold itself.

    Args:
        shapes: the model's shapes by name, as botocore has them, or as `FILE` has.
        root: name of the shape.
    """

    def read(reference: Any) -> Shape:
        wire = {"shape": reference} if isinstance(reference, str) else reference
        name = wire["shape"]
        entry = shapes[name]
        return Shape(
            kind=_KINDS.get(entry["type"], entry["type"]),
            low=entry.get("min"),
            high=entry.get("max"),
            pattern=entry.get("pattern", ""),
            enum=tuple(sorted(instance_types.KNOWN) if name == "TrainingInstanceType" else entry.get("enum", ())),
            required=frozenset(entry.get("required", ())),
            members={member: read(inner) for member, inner in entry.get("members", {}).items()},
            inner={key: read(entry[key]) for key in ("member", "key", "value") if key in entry},
            name=wire.get("locationName", ""),
            place=wire.get("location", ""),
            payload=entry.get("payload", ""),
            flat=entry.get("flattened", False),
        )

    return read(root)


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Returns one of the service's patterns for `fullmatch`: Java's dialect, where a dot matches no line break."""
    text = pattern.replace("\\p{Alnum}", "A-Za-z0-9").replace("\\p{L}\\p{Z}\\p{N}", "\\w" + _SPACES)
    text = text.replace(".*", _LINE + "*").replace(".+", _LINE + "+")
    return re.compile(text, 0 if "\\p{L}" in pattern else re.ASCII)


SERVICE = "ValidationException"
CLIENT = "ParamValidationError"
_PREFIX = "failed to satisfy constraint: "
_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "string": (str, "a string"),
    "integer": (int, "a whole number"),
    "boolean": (bool, "true or false"),
    "number": ((int, float), "a number"),
    "list": (list, "a list"),
    "map": (dict, "a mapping"),
    "structure": (dict, "a mapping"),
}
_MANY = 50  # more values than a message lists


def is_request(data: Mapping[str, object]) -> bool:
    """Tells a CreateTrainingJob request from a job file: by its keys."""
    telling = {"AlgorithmSpecification", "ResourceConfig", "OutputDataConfig", "InputDataConfig", "RoleArn"}
    return "TrainingJobName" in data or len(telling & data.keys()) > 1


def check_request(request: Mapping[str, object]) -> list[Finding]:
    """Returns what the service or its client would refuse of a request, at its place in the request."""
    return [*check_shape(request, create_training_job()), *_rules(request)]


def check_shape(value: object, shape: Shape, path: Path = ()) -> Iterator[Finding]:
    """Yields what of a value does not have a shape: types, lengths, patterns, counts, unknown and missing members."""
    kind, words = _TYPES[shape.kind]
    if not isinstance(value, kind) or (isinstance(value, bool) and shape.kind != "boolean"):
        message = f"Invalid type for parameter, valid types: {words}"
        yield Finding(path, message, f"{show(value)}, {type(value).__name__}", code=CLIENT, broken=Broken.TYPE)
    elif isinstance(value, dict):
        yield from (_structure if shape.kind == "structure" else _map)(value, shape, path)
    elif isinstance(value, list):
        yield from _size(len(value), shape, path, f"{len(value)} items")
        for index, item in enumerate(value):
            yield from check_shape(item, shape.inner["member"], (*path, index))
    elif isinstance(value, str):
        for message, seen, hint in _text(value, shape):
            yield _broken(path, message, seen, hint)
    elif isinstance(value, int):
        yield from _size(value, shape, path, show(value), "value")


def _structure(value: Mapping[str, object], shape: Shape, path: Path) -> Iterator[Finding]:
    for name, member in value.items():
        if name in shape.members:
            yield from check_shape(member, shape.members[name], (*path, name))
        else:
            message = f"Unknown parameter in input; {suggestion(name, shape.members)}"
            yield Finding((*path, name), message, code=CLIENT, broken=Broken.UNKNOWN)
    for name in shape.members:
        if name in shape.required and name not in value:
            message = "Missing required parameter in input"
            yield Finding((*path, name), message, code=CLIENT, broken=Broken.MISSING)


def _map(value: Mapping[str, object], shape: Shape, path: Path) -> Iterator[Finding]:
    yield from _size(len(value), shape, path, f"{len(value)} entries")
    for key, text in value.items():
        for message, seen, _ in _text(key, shape.inner["key"]):
            yield _broken((*path, key), f"Map keys must satisfy constraint: [{message}]", seen)
        if not isinstance(text, str):
            yield from check_shape(text, shape.inner["value"], (*path, key))
            continue
        for message, seen, _ in _text(text, shape.inner["value"]):
            yield _broken((*path, key), f"Map value must satisfy constraint: [{message}]", seen)


def _text(text: str, shape: Shape) -> Iterator[tuple[str, str, str]]:
    """Yields message, what it shows and hint for each limit that a text breaks. What is too long is not shown."""
    limit = _limit(len(text), shape, "length")
    if limit:
        yield limit, f"{len(text)} characters", ""
    elif shape.pattern and not compiled(shape.pattern).fullmatch(text):
        yield f"Member must satisfy regular expression pattern: {shape.pattern}", show(text), ""
    elif shape.enum and text not in shape.enum:
        many = len(shape.enum) > _MANY
        hint = suggestion(text, shape.enum) if many else ""
        allowed = "the instance types of SageMaker training" if many else f"[{', '.join(shape.enum)}]"
        yield f"Member must satisfy enum value set: {allowed}", show(text), hint if len(hint) < 80 else ""


def _size(count: int, shape: Shape, path: Path, seen: str, what: str = "length") -> Iterator[Finding]:
    limit = _limit(count, shape, what)
    if limit:
        yield _broken(path, limit, seen)


def _limit(count: int, shape: Shape, what: str) -> str:
    """Returns the limit that a length or a value breaks, in the service's words; empty when it breaks none."""
    if shape.high is not None and count > shape.high:
        return f"Member must have {what} less than or equal to {shape.high}"
    if shape.low is not None and count < shape.low:
        return f"Member must have {what} greater than or equal to {shape.low}"
    return ""


def _broken(path: Path, message: str, seen: str, hint: str = "") -> Finding:
    return Finding(path, _PREFIX + message, seen, hint, code=SERVICE, broken=Broken.LIMIT)


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
