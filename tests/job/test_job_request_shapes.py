"""Every limit of a CreateTrainingJob request: the table is the service's model, and each limit holds where it says."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.catalog import instance_types
from headrace.job.sagemaker.check import check_request
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
)

GOLDEN = json.loads((Path(__file__).parent / "golden" / "create_training_job.json").read_text())
Place = tuple[str | int, ...]


def rows(shape: Shape, path: str) -> Iterator[tuple[str, dict[str, object]]]:
    """The table in the form of the golden file."""
    if isinstance(shape, Record):
        yield path, {"type": "structure", "required": sorted(shape.required)}
        for name, member in shape.members.items():
            yield from rows(member, f"{path}.{name}".lstrip("."))
    elif isinstance(shape, Items):
        yield path, {"type": "list", "min": shape.low, "max": shape.high}
        yield from rows(shape.item, path + "[]")
    elif isinstance(shape, Table):
        yield path, {"type": "map", "min": 0, "max": shape.high}
        yield from rows(shape.key, path + "{key}")
        yield from rows(shape.value, path + "{value}")
    elif isinstance(shape, Text):
        row: dict[str, object] = {"type": "string", "min": shape.low, "max": shape.high, "pattern": shape.pattern}
        yield path, {key: value for key, value in row.items() if value not in ("", 0) or key == "type"}
    elif isinstance(shape, Whole):
        row = {"type": "integer", "min": shape.low, "max": shape.high}
        yield path, {key: value for key, value in row.items() if value is not None}
    elif isinstance(shape, Choice):
        yield path, {"type": "string", "enum": sorted(shape.values)}
    elif isinstance(shape, InstanceType):
        yield path, {"type": "string", "enum": len(instance_types.KNOWN)}
    else:
        yield path, {"type": "boolean"}


def bare(row: dict[str, object]) -> dict[str, object]:
    """A row of the golden file without what is the same as nothing: a least length of 0, a whole number's width."""
    kind = {"long": "integer"}.get(str(row["type"]), row["type"])
    return {key: value for key, value in {**row, "type": kind}.items() if kind != "string" or value not in (0, "")}


def test_the_table_is_the_service_model() -> None:
    ours = dict(rows(CREATE_TRAINING_JOB, ""))
    theirs = {path: bare(row) for path, row in GOLDEN["shapes"].items()}
    for path in ("DebugRuleConfigurations[].InstanceType", "ProfilerRuleConfigurations[].InstanceType"):
        assert ours.pop(path) == {"type": "string"}  # types of processing jobs are not looked up
        theirs.pop(path)
    assert ours == theirs


def test_the_instance_types_are_those_of_the_service_model() -> None:
    assert sorted(instance_types.KNOWN) == GOLDEN["instance_types"]


ACCOUNT = "arn:aws:sagemaker:us-east-1:123456789012"
HUB = "arn:aws:sagemaker:us-east-1:aws:hub-content/"
SAMPLES = {  # texts for the patterns that not every letter fits
    "iam": "arn:aws:iam::123456789012:role/Train",
    "(https|s3)": "s3://bucket/prefix",
    "fs-": "fs-0123456789",
    "lambda": "arn:aws:lambda:us-east-1:123456789012:function:f",
    "training-plan": f"{ACCOUNT}:training-plan/plan-0123456789",
    "DataSet": f"{HUB}hub/DataSet/data/1.0.0",
    "Model\\": "",
    "mlflow": f"{ACCOUNT}:mlflow-tracking-server/name",
    "model-package-group": f"{ACCOUNT}:model-package-group/name",
    "model-package/": f"{ACCOUNT}:model-package/name",
}


def sample(shape: Shape) -> object:
    """A valid value with everything in it that a shape may hold."""
    if isinstance(shape, Record):
        return {name: sample(member) for name, member in shape.members.items()}
    if isinstance(shape, Items):
        return [sample(shape.item)]
    if isinstance(shape, Table):
        return {"a": "a"}
    if isinstance(shape, Whole):
        return max(shape.low or 0, 1)
    if isinstance(shape, Choice):
        return shape.values[0]
    if isinstance(shape, InstanceType):
        return "ml.c5.xlarge"
    if isinstance(shape, Switch):
        return False
    return next((text for key, text in SAMPLES.items() if key in shape.pattern), "a" * max(shape.low, 1))


def whole_request() -> dict[str, object]:
    request = sample(CREATE_TRAINING_JOB)
    assert isinstance(request, dict)
    del request["ServerlessJobConfig"]
    del request["AlgorithmSpecification"]["AlgorithmName"]
    for name in ("InstanceType", "InstanceCount", "InstancePreferences"):
        del request["ResourceConfig"][name]
    for name in ("FileSystemDataSource", "DatasetSource"):
        del request["InputDataConfig"][0]["DataSource"][name]
    return request


def leaves(shape: Shape, value: object, path: Place) -> Iterator[tuple[Place, Shape]]:
    yield path, shape
    if isinstance(shape, Record) and isinstance(value, dict):
        for name, member in value.items():
            yield from leaves(shape.members[name], member, (*path, name))
    elif isinstance(shape, Items) and isinstance(value, list):
        yield from leaves(shape.item, value[0], (*path, 0))


def with_value(place: Place, value: object) -> dict[str, object]:
    request = copy.deepcopy(whole_request())
    inner: object = request
    for step in place[:-1]:
        inner = inner[step]  # type: ignore[index]
    inner[place[-1]] = value  # type: ignore[index]
    return request


def beyond(shape: Shape) -> Iterator[tuple[object, str]]:
    """Values that are just outside, each with words of the message."""
    if isinstance(shape, Text):
        if shape.high:
            yield "a" * (shape.high + 1), f"length less than or equal to {shape.high}"
        if shape.low:
            yield "a" * (shape.low - 1), f"length greater than or equal to {shape.low}"
        if shape.pattern not in ("", "[\\S\\s]*"):
            yield "a" * max(shape.low, 1) + "\n", "regular expression pattern"
        yield 3, "Invalid type"
    elif isinstance(shape, Whole):
        if shape.low is not None:
            yield shape.low - 1, f"greater than or equal to {shape.low}"
        if shape.high is not None:
            yield shape.high + 1, f"less than or equal to {shape.high}"
        yield True, "Invalid type"
        yield "1", "Invalid type"
    elif isinstance(shape, Items):
        if shape.low:
            yield [], f"length greater than or equal to {shape.low}"
        yield [sample(shape.item)] * (shape.high + 1), f"length less than or equal to {shape.high}"
        yield {}, "Invalid type"
    elif isinstance(shape, Table):
        yield {f"k{n}": "" for n in range(shape.high + 1)}, f"length less than or equal to {shape.high}"
        yield {"a" * (shape.key.high + 1): ""}, "Map keys must satisfy constraint: [Member must have length less"
        yield {"a": "a" * (shape.value.high + 1)}, "Map value must satisfy constraint: [Member must have length less"
        yield {"a": 1}, "Invalid type"
    elif isinstance(shape, Choice | InstanceType):
        yield "other", "enum value set"
    elif isinstance(shape, Switch):
        yield "true", "Invalid type"
    else:
        yield [], "Invalid type"
        yield {"Zzz": 1}, "Unknown parameter"


def at_limit(shape: Shape) -> Iterator[object]:
    if isinstance(shape, Whole):
        yield from (limit for limit in (shape.low, shape.high) if limit is not None)
    elif isinstance(shape, Items):
        yield [sample(shape.item)] * shape.high
    elif isinstance(shape, Table):
        yield {f"k{n}": "a" * shape.value.high for n in range(shape.high)}
        yield {"a" * shape.key.high: ""}
    elif isinstance(shape, Choice):
        yield from shape.values
    elif isinstance(shape, Text) and shape.high and not any(key in shape.pattern for key in SAMPLES):
        yield "a" * shape.high
        yield "a" * shape.low if shape.low or shape.pattern not in ("[-0-9a-zA-Z]+",) else "a"


PLACES = [(place, shape) for place, shape in leaves(CREATE_TRAINING_JOB, whole_request(), ()) if place]


def test_a_request_with_everything_in_it_is_valid() -> None:
    assert check_request(whole_request()) == []


@pytest.mark.parametrize(
    ("place", "shape"), PLACES, ids=lambda part: ".".join(map(str, part)) if type(part) is tuple else ""
)
def test_a_value_at_its_limit_is_accepted_and_one_beyond_is_refused_with_the_words_of_the_service(
    place: Place, shape: Shape
) -> None:
    for value in at_limit(shape):
        repeated = [f for f in check_request(with_value(place, value)) if "twice" not in f.message]
        assert [
            (f.path, f.message) for f in repeated if f.code != "ValidationException" or "exactly one" not in f.message
        ] == []
    for value, words in beyond(shape):
        found = [finding for finding in check_request(with_value(place, value)) if words in finding.message]
        assert any(finding.path[: len(place)] == place for finding in found), (place, str(value)[:60], words)
        assert all(finding.code in ("ValidationException", "ParamValidationError") for finding in found)


@pytest.mark.parametrize(("place", "shape"), [p for p in PLACES if isinstance(p[1], Record)])
def test_a_member_that_is_required_is_asked_for(place: Place, shape: Record) -> None:
    for name in shape.required:
        request = whole_request()
        inner: object = request
        for step in place:
            inner = inner[step]  # type: ignore[index]
        if name not in inner:  # type: ignore[operator]
            continue
        del inner[name]  # type: ignore[attr-defined]
        found = [finding.path for finding in check_request(request) if "Missing required" in finding.message]
        assert found == [(*place, name)]
