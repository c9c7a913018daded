"""The JSON Schema of a CreateTrainingJob request (draft 2020-12), of the same shapes that check requests."""

from __future__ import annotations

from headrace.job.file.json_schema import DRAFT, Schema
from headrace.job.sagemaker.shapes import Shape, compiled, create_training_job

_LIMITS = {
    "list": ("minItems", "maxItems"),
    "map": ("minProperties", "maxProperties"),
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
}


def request_schema() -> Schema:
    """Returns the schema."""
    return {"$schema": DRAFT, "title": "CreateTrainingJob request", **_schema(create_training_job())}


def _schema(shape: Shape) -> Schema:
    if shape.kind == "structure":
        members = {name: _schema(member) for name, member in shape.members.items()}
        required = sorted(shape.required)
        return {"type": "object", "properties": members, "required": required, "additionalProperties": False}
    schema: Schema = {"type": {"list": "array", "map": "object"}.get(shape.kind, shape.kind)}
    if shape.kind == "list":
        schema["items"] = _schema(shape.inner["member"])
    elif shape.kind == "map":
        schema["propertyNames"] = _schema(shape.inner["key"])
        schema["additionalProperties"] = _schema(shape.inner["value"])
    limits = zip(_LIMITS.get(shape.kind, ()), (shape.low, shape.high), strict=False)
    schema |= {name: limit for name, limit in limits if limit is not None}
    if shape.pattern:
        schema["pattern"] = f"^(?:{compiled(shape.pattern).pattern})$"
    if shape.enum:
        schema["enum"] = list(shape.enum)
    return schema
