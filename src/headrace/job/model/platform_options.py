"""Options that only SageMaker acts on: image, role, network, volumes, tags. They are checked and have no effect here.
And the metric definitions, which headrace's agents act on too.

Limits and patterns are those of the CreateTrainingJob request.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AliasChoices, BeforeValidator, Field, JsonValue

from headrace.job.model.field_types import AsList, AsMapping, one_line, whole
from headrace.job.model.frozen_model import Part
from headrace.job.problems.finding import broken


def matching(pattern: str, low: int, high: int, what: str) -> Callable[[object], str]:
    """Makes the check of a text of `low` to `high` characters that a pattern describes.

    Args:
        pattern: regular expression of the whole text.
        low: least number of characters.
        high: greatest number of characters.
        what: what the text must be, in words.
    """
    compiled = re.compile(pattern)

    def check(value: object) -> str:
        text = one_line(value, low, high)
        if not compiled.fullmatch(text):
            raise broken(f"must be {what}")
        return text

    return check


_LETTERS = r"[\w .:/=+\-@]*"
Image = Annotated[str, BeforeValidator(lambda value: one_line(value, 1, 255))]
Role = Annotated[str, BeforeValidator(lambda value: one_line(value, 1, 2048))]
Version = Annotated[str, BeforeValidator(lambda value: one_line(value, 1, 64))]
KmsKey = Annotated[str, BeforeValidator(matching(r"[a-zA-Z0-9:/_-]*", 0, 2048, "a key of KMS: its id, ARN or alias"))]
NetworkId = Annotated[str, BeforeValidator(matching(r"[-0-9a-zA-Z]+", 1, 32, "an id of letters, digits and hyphens"))]
Subnets = Annotated[tuple[NetworkId, ...], AsList]
SecurityGroups = Annotated[tuple[NetworkId, ...], AsList]
Gigabytes = Annotated[int, BeforeValidator(whole(0))]
KeepAlive = Annotated[int, BeforeValidator(whole(0, 21600, " seconds"))]
TrainingPlan = Annotated[
    str,
    BeforeValidator(
        matching(
            r"arn:aws[a-z\-]*:sagemaker:[a-z0-9\-]*:[0-9]{12}:training-plan/.*", 50, 2048, "the ARN of a training plan"
        )
    ),
]
TagKey = Annotated[str, BeforeValidator(matching(_LETTERS, 1, 128, "letters, digits, blanks and _.:/=+-@"))]
TagValue = Annotated[str, BeforeValidator(matching(_LETTERS, 0, 256, "letters, digits, blanks and _.:/=+-@"))]
MetricName = Annotated[str, BeforeValidator(lambda value: one_line(value, 1, 255))]


def with_group(value: object) -> str:
    """Returns a regular expression of 1 to 500 characters that has a group."""
    text = one_line(value, 1, 500)
    try:
        compiled = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise broken(
            f"must be a regular expression: {error}", hint=r"write \( for a bracket, \. for a dot, \* for a star"
        ) from None
    if not compiled.groups:
        raise broken("must have a group, which is the figure", hint="put it in brackets, e.g. loss=([0-9.]+)")
    return text


MetricRegex = Annotated[str, BeforeValidator(with_group)]
Extras = Annotated[dict[str, JsonValue], AsMapping]


class Tag(Part):
    """A label of the training job.

    Attributes:
        key: 1 to 128 characters, different from the other tags'. Also spelt `Key`.
        value: at most 256 characters. Also spelt `Value`.
    """

    key: TagKey = Field(validation_alias=AliasChoices("key", "Key"))
    value: TagValue = Field(validation_alias=AliasChoices("value", "Value"))


class MetricDefinition(Part):
    """A figure that is found in the logs.

    Attributes:
        name: 1 to 255 characters. Also spelt `Name`.
        regex: regular expression whose first group is the figure, 1 to 500 characters.
            Also spelt `Regex`.
    """

    name: MetricName = Field(validation_alias=AliasChoices("name", "Name"))
    regex: MetricRegex = Field(validation_alias=AliasChoices("regex", "Regex"))


Tags = Annotated[tuple[Tag, ...], AsList]
MetricDefinitions = Annotated[tuple[MetricDefinition, ...], AsList]
