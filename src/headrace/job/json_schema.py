"""The JSON Schemas (draft 2020-12) of a job file and of a CreateTrainingJob request, for editors and other programs.

The JSON Schema of a job file (draft 2020-12), for editors and for programs that write job files.

pydantic makes it from the models. Added here is what pydantic does not know: what each key means, the other names of
keys, and the short forms. Limits that a schema cannot say in a way that helps are left to `headrace plan`: whatever the
schema refuses is refused there too, not the other way round.
"""

from __future__ import annotations

import inspect
import re

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from headrace.job.model.fields import JobFields
from headrace.job.model.parts import TrainingInput
from headrace.job.sagemaker.check import Shape, compiled, create_training_job

DRAFT = GenerateJsonSchema.schema_dialect
_ITEM = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.MULTILINE)
_NULL = {"type": "null"}

Schema = JsonSchemaValue


def job_schema() -> Schema:
    """Returns the schema."""
    schema = JobFields.model_json_schema(schema_generator=_Generator)
    for part in (schema, *schema["$defs"].values()):
        part.pop("title", None)  # pydantic's own words for a class, of which 2.7 adds more than later versions
        part.pop("description", None)
    return {"$schema": DRAFT, "title": "headrace job file", **schema}


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Returns what each field of a model means: the ``Attributes`` of its docstring."""
    _, _, attributes = (inspect.getdoc(model) or "").partition("Attributes:\n")
    entries = _ITEM.findall(attributes.partition("\n\n")[0])
    return {name: re.sub(r"\n\s+", " ", text) for name, text in entries}


def spellings(name: str, field: FieldInfo) -> list[str]:
    """Returns the names of a field, SageMaker's first."""
    alias = field.validation_alias
    return [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [name]


class _Generator(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        default = schema.get("default")
        plain = isinstance(default, (str, bool, int, float)) and default != ""
        return self.generate_inner(schema["schema"]) | ({"default": default} if plain else {})

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        model: type[BaseModel] = schema["cls"]
        shape = super().model_schema(schema)
        texts, properties = descriptions(model), shape["properties"]
        required, choices = [], []
        for name, field in model.model_fields.items():
            names = spellings(name, field)
            value = properties.pop(names[0])
            if model is JobFields:
                value = _at_the_top(name, value)
            for spelling in names:
                text = texts[name] if spelling == names[0] else f"Another name of {names[0]}."
                properties[spelling] = {"description": text, **value}
            if field.is_required() and len(names) == 1:
                required.append(name)
            elif field.is_required():
                choices.append({"oneOf": [{"required": [choice]} for choice in names]})
        others = {"type": "object"} if model.model_config.get("extra") == "allow" else False
        result: Schema = {"type": "object", "properties": properties, "additionalProperties": others}
        # A file without job_name is named after itself; what else a job needs depends on other keys.
        if required and model is not JobFields:
            result["required"] = required
        if choices:
            result["allOf"] = choices
        return {"anyOf": [{"type": "string"}, result]} if model is TrainingInput else result


def _at_the_top(name: str, value: Schema) -> Schema:
    """A key at the top with the value null counts as left out; one distribution may be written as itself."""
    if name == "distribution":
        return {"anyOf": [value["items"], {**value, "maxItems": 5}, _NULL]}
    if "anyOf" in value:
        return value
    default = {key: value.pop(key) for key in ("default",) if key in value}
    return {"anyOf": [value, _NULL], **default}


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
