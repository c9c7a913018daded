"""The JSON Schema of a CreateTrainingJob request (draft 2020-12), of the same table that checks requests."""

from __future__ import annotations

from headrace.catalog import instance_types
from headrace.job.file.json_schema import DRAFT, Schema
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


def request_schema() -> Schema:
    """Returns the schema."""
    return {"$schema": DRAFT, "title": "CreateTrainingJob request", **_schema(CREATE_TRAINING_JOB)}


def _schema(shape: Shape) -> Schema:
    if isinstance(shape, Record):
        members = {name: _schema(member) for name, member in shape.members.items()}
        required = sorted(shape.required)
        return {"type": "object", "properties": members, "required": required, "additionalProperties": False}
    if isinstance(shape, Items):
        return {"type": "array", "items": _schema(shape.item), "minItems": shape.low, "maxItems": shape.high}
    if isinstance(shape, Table):
        return {
            "type": "object",
            "propertyNames": _schema(shape.key),
            "additionalProperties": _schema(shape.value),
            "maxProperties": shape.high,
        }
    if isinstance(shape, Text):
        schema: Schema = {"type": "string", "minLength": shape.low}
        if shape.high:
            schema["maxLength"] = shape.high
        if shape.pattern:
            schema["pattern"] = f"^(?:{compiled(shape.pattern).pattern})$"
        return schema
    if isinstance(shape, Whole):
        limits = {"minimum": shape.low, "maximum": shape.high}
        return {"type": "integer", **{key: limit for key, limit in limits.items() if limit is not None}}
    if isinstance(shape, Choice | InstanceType):
        return {
            "type": "string",
            "enum": list(shape.values) if isinstance(shape, Choice) else sorted(instance_types.KNOWN),
        }
    assert isinstance(shape, Switch)
    return {"type": "boolean"}
