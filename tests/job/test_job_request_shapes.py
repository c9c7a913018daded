"""Every limit of a CreateTrainingJob request: the shapes are the service model's, and a limit holds where it says."""

from __future__ import annotations

import copy
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.catalog import instance_types
from headrace.job.sagemaker.check import FILE, Shape, check_request, create_training_job

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "request_shapes.py"
Place = tuple[str | int, ...]


@pytest.mark.s3
def test_the_shapes_are_those_of_the_installed_botocore() -> None:
    script = runpy.run_path(str(SCRIPT))
    assert FILE.read_text() == script["request_shapes"](script["service_model"]()), f"run {SCRIPT}"


@pytest.mark.s3
def test_the_instance_types_are_those_of_the_service_model() -> None:
    model = runpy.run_path(str(SCRIPT))["service_model"]()
    assert sorted(instance_types.KNOWN) == sorted(model["shapes"]["TrainingInstanceType"]["enum"])


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
    if shape.kind == "structure":
        return {name: sample(member) for name, member in shape.members.items()}
    if shape.kind == "list":
        return [sample(shape.inner["member"])]
    if shape.kind == "map":
        return {"a": "a"}
    if shape.kind == "integer":
        return max(shape.low or 0, 1)
    if shape.kind == "boolean":
        return False
    if shape.enum:
        return shape.enum[0]
    return next((text for key, text in SAMPLES.items() if key in shape.pattern), "a" * max(shape.low or 0, 1))


def whole_request() -> dict[str, object]:
    request = sample(create_training_job())
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
    if shape.kind == "structure" and isinstance(value, dict):
        for name, member in value.items():
            yield from leaves(shape.members[name], member, (*path, name))
    elif shape.kind == "list" and isinstance(value, list):
        yield from leaves(shape.inner["member"], value[0], (*path, 0))


def with_value(place: Place, value: object) -> dict[str, object]:
    request = copy.deepcopy(whole_request())
    inner: object = request
    for step in place[:-1]:
        inner = inner[step]  # type: ignore[index]
    inner[place[-1]] = value  # type: ignore[index]
    return request


def beyond(shape: Shape) -> Iterator[tuple[object, str]]:
    """Values that are just outside, each with words of the message."""
    if shape.enum:
        yield "other", "enum value set"
    elif shape.kind == "string":
        if shape.high:
            yield "a" * (shape.high + 1), f"length less than or equal to {shape.high}"
        if shape.low:
            yield "a" * (shape.low - 1), f"length greater than or equal to {shape.low}"
        if shape.pattern not in ("", "[\\S\\s]*"):
            yield "a" * max(shape.low or 0, 1) + "\n", "regular expression pattern"
        yield 3, "Invalid type"
    elif shape.kind == "integer":
        if shape.low is not None:
            yield shape.low - 1, f"greater than or equal to {shape.low}"
        if shape.high is not None:
            yield shape.high + 1, f"less than or equal to {shape.high}"
        yield True, "Invalid type"
        yield "1", "Invalid type"
    elif shape.kind == "list":
        if shape.low:
            yield [], f"length greater than or equal to {shape.low}"
        yield [sample(shape.inner["member"])] * (shape.high + 1), f"length less than or equal to {shape.high}"
        yield {}, "Invalid type"
    elif shape.kind == "map":
        key, value = shape.inner["key"], shape.inner["value"]
        yield {f"k{n}": "" for n in range(shape.high + 1)}, f"length less than or equal to {shape.high}"
        yield {"a" * (key.high + 1): ""}, "Map keys must satisfy constraint: [Member must have length less"
        yield {"a": "a" * (value.high + 1)}, "Map value must satisfy constraint: [Member must have length less"
        yield {"a": 1}, "Invalid type"
    elif shape.kind == "boolean":
        yield "true", "Invalid type"
    else:
        yield [], "Invalid type"
        yield {"Zzz": 1}, "Unknown parameter"


def at_limit(shape: Shape) -> Iterator[object]:
    if shape.enum:
        yield from shape.enum
    elif shape.kind == "integer":
        yield from (limit for limit in (shape.low, shape.high) if limit is not None)
    elif shape.kind == "list":
        yield [sample(shape.inner["member"])] * shape.high
    elif shape.kind == "map":
        yield {f"k{n}": "a" * shape.inner["value"].high for n in range(shape.high)}
        yield {"a" * shape.inner["key"].high: ""}
    elif shape.kind == "string" and shape.high and not any(key in shape.pattern for key in SAMPLES):
        yield "a" * shape.high
        yield "a" * (shape.low or 0) if shape.low or shape.pattern not in ("[-0-9a-zA-Z]+",) else "a"


PLACES = [(place, shape) for place, shape in leaves(create_training_job(), whole_request(), ()) if place]


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


@pytest.mark.parametrize(("place", "shape"), [p for p in PLACES if p[1].kind == "structure"])
def test_a_member_that_is_required_is_asked_for(place: Place, shape: Shape) -> None:
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
