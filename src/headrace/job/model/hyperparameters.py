"""Hyperparameters of a job in a request: from text to value and back, so that a request comes back as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from pydantic import JsonValue

from headrace import sagemaker_parameters
from headrace.job.model.field_types import json_form
from headrace.sagemaker_parameters import GROUPS, PROGRAM, STRATEGIES, SUBMIT_DIRECTORY

KNOWN = frozenset({PROGRAM, SUBMIT_DIRECTORY, GROUPS, *STRATEGIES})
"""Reserved hyperparameters that a job has keys for."""


def is_reserved(name: str) -> bool:
    """Tells whether a hyperparameter of a request is not the user's: SageMaker reserves it, or a key holds it."""
    return sagemaker_parameters.is_reserved(name) or name in STRATEGIES


def decode(text: str) -> JsonValue:
    """Returns what a program gets for a hyperparameter's text: the JSON value that it is, else the text itself.

    A value that a job cannot have, such as NaN, stays text.
    """
    value = sagemaker_parameters.decode(text)
    try:
        json_form(value)
    except (ValueError, RecursionError):
        return text
    return cast(JsonValue, value)


def encode(value: object, raw: object = None) -> str:
    """Returns a hyperparameter as a request carries it.

    Args:
        value: the value.
        raw: how a request wrote it; that is kept when it still means the same.
    """
    if isinstance(raw, str) and same(decode(raw), value):
        return raw
    return json.dumps(value, allow_nan=False)


def same(one: object, other: object) -> bool:
    """Tells whether two values are the same in JSON, where 1, 1.0 and true are three things."""
    return json.dumps(one) == json.dumps(other)


def encoded(values: Mapping[str, object], raw: Mapping[str, object]) -> dict[str, str]:
    """Returns hyperparameters as a request carries them, in their order. See `encode`."""
    return {name: encode(value, raw.get(name)) for name, value in values.items()}
