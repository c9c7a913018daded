"""The public API is what `tests/public_api.txt` says: names, parameters, methods. UPDATE_GOLDEN=1 writes it anew.

A line that goes or changes breaks somebody's program: see docs/stability.md before you update the file.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from pydantic import BaseModel

KEPT = Path(__file__).with_name("public_api.txt")
MODULES = ("headrace", "headrace.feed", "headrace.estimator", "headrace.errors")


def parameters(callable_: object) -> str:
    """Parameters with their kinds, and which have a default; annotations and defaults themselves may change."""
    shown = []
    for parameter in inspect.signature(callable_).parameters.values():  # type: ignore[arg-type]
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        named = "keyword " if parameter.kind is parameter.KEYWORD_ONLY else ""
        optional = "" if parameter.default is parameter.empty or star else "=..."
        shown.append(f"{named}{star}{parameter.name}{optional}")
    return f"({', '.join(shown)})"


def members(name: str, value: type) -> Iterator[str]:
    """Lines of a class: how it is made, its fields, and its public methods, those of its bases of headrace too."""
    if issubclass(value, BaseModel):
        yield f"{name}({', '.join(field for field in value.model_fields)})"
    elif issubclass(value, msgspec.Struct):
        yield f"{name}({', '.join(value.__struct_fields__)})"
    elif issubclass(value, BaseException):
        yield f"{name}: {value.__mro__[1].__name__}"
    else:
        yield f"{name}{parameters(value)}"
    ours = [base for base in value.__mro__ if base.__module__.startswith("headrace")]
    for member in sorted({key for base in ours for key in vars(base) if not key.startswith(("_", "model_"))}):
        found = inspect.getattr_static(value, member)
        if isinstance(found, staticmethod | classmethod) or inspect.isfunction(found):
            yield f"{name}.{member}{parameters(getattr(value, member))}"
        elif isinstance(found, property) or type(found).__name__ == "cached_property":
            yield f"{name}.{member}"


def public_api() -> Iterator[str]:
    """A line a name of the public modules, in their order."""
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        names = getattr(module, "__all__", None) or [
            name for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module_name and not name.startswith("_")
        ]  # fmt: skip
        for name in sorted(names):
            value = getattr(module, name)
            if inspect.isclass(value):
                yield from members(f"{module_name}.{name}", value)
            elif callable(value):
                yield f"{module_name}.{name}{parameters(value)}"
            else:
                yield f"{module_name}.{name}"


def test_names_and_parameters_are_those_that_users_know() -> None:
    found = [*public_api()]
    if os.environ.get("UPDATE_GOLDEN"):
        KEPT.write_text("\n".join(found) + "\n")
    kept = KEPT.read_text().splitlines()
    assert {"gone or changed": [*set(kept) - set(found)], "new": [*set(found) - set(kept)]} == {
        "gone or changed": [], "new": [],
    }  # fmt: skip
    assert len(found) > 100
