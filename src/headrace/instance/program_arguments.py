"""Hyperparameters: as strings in hyperparameters.json, as values in Python, as arguments of a program.

The file holds strings only. The SDK sends each value as JSON (``"10"``, ``"true"``, ``"\\"a\\""``); a value that is
not JSON is a plain string. In a program's argv they follow the dialect of SageMaker's training toolkit:

    {"epochs": 3}            --epochs 3          names in sorted order
    {"k": 5}                 -k 5                a name of one letter has one hyphen
    {"cased": True}          --cased True        Python's str() of the value, so a list looks as in Python
    {"layers": {"a": 1}}     --layers a=1        a mapping is k=v,k=v in sorted order
    {"note": None}           --note ''

The result is a list for exec. It never goes through a shell, so a value may hold spaces, quotes and semicolons.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from headrace import sagemaker_parameters
from headrace.errors import UsageError


def encode(hyperparameters: Mapping[str, object]) -> dict[str, str]:
    """Returns the hyperparameters as hyperparameters.json holds them.

    Raises:
        UsageError: a value that JSON cannot hold, or that no program could be given.
    """
    encoded = {}
    for name, value in hyperparameters.items():
        try:
            encoded[name] = json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"hyperparameter {name!r}: {value!r} cannot be written as JSON: {error}",
                "use strings, numbers, true, false, null, and lists and mappings of them",
            ) from None
    hyperparameter_arguments(decode(encoded))
    return encoded


def decode(hyperparameters: Mapping[str, object]) -> dict[str, object]:
    """Returns the values of what hyperparameters.json holds: parsed as JSON where they are JSON."""
    return {
        name: sagemaker_parameters.decode(value) if isinstance(value, str) else value
        for name, value in hyperparameters.items()
    }


def hyperparameter_arguments(hyperparameters: Mapping[str, object]) -> list[str]:
    """Returns the hyperparameters as arguments of a program, in the toolkit's dialect (see above).

    >>> hyperparameter_arguments({"epochs": 3, "k": 0.5, "name": "a b; c", "use": {"y": 2, "x": [1]}})
    ['--epochs', '3', '-k', '0.5', '--name', 'a b; c', '--use', 'x=[1],y=2']

    Args:
        hyperparameters: name to value, as `Environment.hyperparameters` gives them.

    Raises:
        UsageError: a name or value that no argument of a process can hold.
    """
    arguments: list[str] = []
    for name in sorted(hyperparameters):
        pair = (_option(name), _text(hyperparameters[name]))
        for text in pair:
            _check_carryable(name, text)
        arguments.extend(pair)
    return arguments


def _option(name: str) -> str:
    if not name:
        return ""
    return f"--{name}" if len(name) > 1 else f"-{name}"


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={item}" for key, item in sorted(value.items()))
    return str(value)


def _check_carryable(name: str, text: str) -> None:
    """Raises UsageError if exec could not pass this text to a program."""
    if "\0" in text:
        raise UsageError(
            f"hyperparameter {name!r} holds a NUL character; arguments and variables of a process cannot",
            "remove it, or put the value into a file of source_dir or of a channel",
        )
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"hyperparameter {name!r} holds {text[error.start]!r}, half of a surrogate pair, which is not text",
            "write the whole character",
        ) from None
