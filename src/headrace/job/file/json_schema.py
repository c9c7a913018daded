"""The JSON Schema of a job file (draft 2020-12), for editors and for programs that write job files.

It says keys, types, other names of keys and what each key means. Limits that a schema cannot say in a way that helps
are left to `headrace plan`: whatever the schema refuses is refused there too, not the other way round.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

from headrace.catalog import instance_types
from headrace.job.model import field_types
from headrace.job.model.channels import TrainingInput
from headrace.job.model.distribution import Distribution
from headrace.job.model.fields import JobFields

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_ITEM = re.compile(r"^    (\w+): (.*)$")

_PLAIN: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null"}
_INSTANCE_TYPE = get_args(field_types.InstanceType)[1]
_AMOUNT = get_args(field_types.Amount)[1]
_ID_SETS = (get_args(field_types.CpuSet)[1], get_args(field_types.GpuSet)[1])

Schema = dict[str, object]


def job_schema() -> Schema:
    """Returns the schema."""
    schema = _model(JobFields)
    del schema["required"]  # a file without job_name is named after itself; what else is needed depends on other keys
    return {"$schema": DRAFT, "title": "headrace job file", **schema}


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Returns what each field of a model means: the ``Attributes`` of its docstring."""
    result: dict[str, str] = {}
    name = ""
    for line in _attributes(inspect.getdoc(model) or ""):
        item = _ITEM.match(line)
        if item:
            name = item[1]
            result[name] = item[2]
        elif line.startswith("        ") and name:
            result[name] += " " + line.strip()
        else:
            name = ""
    return result


def _attributes(text: str) -> Iterator[str]:
    _, found, rest = text.partition("Attributes:\n")
    yield from rest.splitlines() if found else ()


def _model(model: type[BaseModel]) -> Schema:
    properties: Schema = {}
    required: list[object] = []
    said = descriptions(model)
    for name, field in model.model_fields.items():
        names = spellings(name, field)
        for spelling in names:
            text = said[name] if spelling == names[0] else f"Another name of {names[0]}."
            properties[spelling] = {"description": text, **_field(name, field, model)}
        if field.is_required():
            required.append(names)
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    simple = [names[0] for names in required if isinstance(names, list) and len(names) == 1]
    choices = [names for names in required if isinstance(names, list) and len(names) > 1]
    if simple:
        schema["required"] = simple
    if choices:
        schema["allOf"] = [{"oneOf": [{"required": [name]} for name in names]} for names in choices]
    return schema


def spellings(name: str, field: FieldInfo) -> list[str]:
    """Returns the names of a field, SageMaker's first."""
    alias = field.validation_alias
    return [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [name]


def _field(name: str, field: FieldInfo, model: type[BaseModel]) -> Schema:
    if model is JobFields and name == "distribution":
        one = _model(Distribution)
        return {"anyOf": [one, {"type": "array", "items": one, "maxItems": 5}, {"type": "null"}]}
    schema = _type(field.annotation, field.metadata)
    default = field.default
    if isinstance(default, (str, bool, int, float)) and default != "":
        schema["default"] = default
    # A key at the top with the value null counts as left out.
    return {"anyOf": [schema, {"type": "null"}]} if model is JobFields and "anyOf" not in schema else schema


def _type(annotation: object, metadata: Sequence[object] = ()) -> Schema:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0], arguments[1:])
    if _INSTANCE_TYPE in metadata:
        return {"type": "string", "enum": sorted(instance_types.KNOWN)}
    if _AMOUNT in metadata:
        return {"type": ["number", "string"]}  # 25, or 25.00 USD
    if any(check in metadata for check in _ID_SETS):
        return {"type": ["string", "integer"]}  # YAML reads one id as a number
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        schema = _model(annotation)
        return {"anyOf": [{"type": "string"}, schema]} if annotation is TrainingInput else schema
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin in (Union, UnionType):
        return {"anyOf": [_type(kind) for kind in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _type(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type(arguments[1])}
    return {"type": _PLAIN[annotation]} if isinstance(annotation, type) and annotation in _PLAIN else {}
