"""What is started for an entry point: the command line of the user's program.

    train.py            python train.py ARGUMENTS
    train.sh            bash ./train.sh ARGUMENTS
    -m trainer.task     python -m trainer.task ARGUMENTS
    trainer             python -m trainer ARGUMENTS, when the code is that package: there is setup.py, pyproject.toml,
                        trainer/__main__.py or trainer.py
    bin/run             ./bin/run ARGUMENTS: any other file of the code directory; it is made executable

A package is run from the code directory and is not installed: that directory, and its ``src``, are on PYTHONPATH. What
it needs stands in requirements.txt. (SageMaker's training toolkit runs `pip install .` on every host. Here the
interpreter is the machine's own, and hosts share it.)

ARGUMENTS are the hyperparameters. A job with a `command` of its own (ContainerEntrypoint and ContainerArguments) gets
none, as on the service: the program finds them in hyperparameters.json and SM_HP_*.

Every command line is passed to exec, without a shell.

Hyperparameters: as strings in hyperparameters.json, as values in Python, as arguments of a program.

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
import os
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from headrace import sagemaker_parameters
from headrace.errors import UsageError

_OPTION = re.compile(r"-m\s+")
_PROJECT_FILES = ("setup.py", "pyproject.toml")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class Kind(Enum):
    """What an entry point is."""

    PYTHON = "Python script"
    SHELL = "shell script"
    MODULE = "Python module"
    PROGRAM = "program"


def kind_of(entry_point: str, code: Path | None = None) -> Kind:
    """Returns what an entry point is.

    Args:
        entry_point: as in the job file.
        code: directory with the code; None when it is not known yet, then the name alone decides.
    """
    if _OPTION.match(entry_point):
        return Kind.MODULE
    if entry_point.endswith(".sh"):
        return Kind.SHELL
    if module_of(entry_point) and _is_module(entry_point, code):
        return Kind.MODULE
    return Kind.PYTHON if entry_point.endswith(".py") else Kind.PROGRAM


def module_of(entry_point: str) -> str:
    """Returns the module that an entry point names; empty when it cannot be one.

    >>> module_of("-m trainer.task"), module_of("trainer"), module_of("trainer.py"), module_of("bin/run")
    ('trainer.task', 'trainer', 'trainer', '')
    """
    option = _OPTION.match(entry_point)
    name = entry_point[option.end() :] if option else entry_point.removesuffix(".py")
    return name if _MODULE.fullmatch(name) else ""


def _is_module(entry_point: str, code: Path | None) -> bool:
    """Whether a name that could be a module's is one, and not that of a file."""
    if code is None:
        return not entry_point.endswith(".py")
    if (code / entry_point).is_file():
        return False
    name = module_of(entry_point).replace(".", "/")
    return is_package(code) or any((code / file).is_file() for file in (f"{name}.py", f"{name}/__main__.py"))


def is_package(code: Path) -> bool:
    """Tells whether a directory of code is a package that could be installed."""
    return any((code / name).is_file() for name in _PROJECT_FILES)


def make_executable(entry_point: str, code: Path) -> None:
    """Makes a program in the code directory executable, as SageMaker's training toolkit does; others are left alone.

    Raises:
        OSError: it cannot be.
    """
    program = code / entry_point
    if kind_of(entry_point, code) is Kind.PROGRAM and not os.access(program, os.X_OK):
        program.chmod(program.stat().st_mode | 0o111)


def search_path(code: Path) -> list[str]:
    """Returns the directories in which programs find the user's modules."""
    inside = code / "src"
    return [str(code), *([str(inside)] if is_package(code) and inside.is_dir() else [])]


def entry_command(entry_point: str, arguments: Sequence[str], python: str, code: Path | None = None) -> list[str]:
    """Returns the command line of an entry point, to be run in the code directory.

    >>> entry_command("train.sh", ["--name", "a b; c"], "python")
    ['bash', './train.sh', '--name', 'a b; c']

    Args:
        entry_point: as in the job file.
        arguments: the hyperparameters.
        python: the interpreter.
        code: see `kind_of`.
    """
    match kind_of(entry_point, code):
        case Kind.MODULE:
            return [python, "-m", module_of(entry_point), *arguments]
        case Kind.SHELL:
            return ["bash", _local(entry_point), *arguments]
        case Kind.PYTHON:
            return [python, entry_point, *arguments]
        case Kind.PROGRAM:
            return [_local(entry_point), *arguments]


def _local(entry_point: str) -> str:
    """With ``./`` before it: a bare name would be looked up in PATH, one with a hyphen would be an option."""
    return f"./{entry_point}"


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
