"""Namedtuples and dataclasses of a batch: their fields, and instances made of fields that came from a peer.

A peer names a class and its fields. What is made of that is an instance of the class with this name if it has been
imported here already and has exactly these fields, else of an equivalent class made on the spot. Either way no code of
the user's class is called: no import, no module or class `__getattr__`, no `__new__`, `__init__`, `__post_init__`,
`__setattr__` and no property; they have done their work where the instance was first made. So a peer can choose nothing
but which plain record it fills.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from headrace.errors import PipelineError, ProtocolError

MAX_FIELDS = 1_000


def name_of(kind: type) -> str:
    """Returns the name under which a class is looked for elsewhere: ``module:qualified.name``."""
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__  # the script, in a spawned process
    return f"{module}:{kind.__qualname__}"


def is_record(value: object) -> bool:
    """Returns whether a value is an instance of a dataclass."""
    return not isinstance(value, type) and dataclasses.is_dataclass(value)


def values_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass instance that have a value."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}


def checked_values(value: Any, path: str) -> dict[str, Any]:
    """Returns the fields of a dataclass instance that is to travel.

    Raises:
        PipelineError: it has attributes that are no fields, which would be lost, or a field without a value.
    """
    names = [field.name for field in dataclasses.fields(value)]
    kind = type(value)
    lost = [
        name
        for name in getattr(value, "__dict__", {})
        if name not in names and not isinstance(inspect.getattr_static(kind, name, None), functools.cached_property)
    ]
    values = values_of(value)
    unset = [name for name in names if name not in values]
    if lost or unset:
        what = f"attributes that are no fields: {', '.join(lost)}" if lost else f"no value for {', '.join(unset)}"
        raise PipelineError(
            f"{path}: a {kind.__module__}.{kind.__qualname__} with {what}",
            hint="declare what belongs to the batch as fields of the dataclass, and give each a value",
        )
    return values


def replaced(value: Any, function: Callable[[Any], Any]) -> Any:
    """Returns a copy of a dataclass instance with `function` applied to each field."""
    result = copy.copy(value)
    for name, item in values_of(value).items():
        object.__setattr__(result, name, function(item))
    return result


def make_namedtuple(name: str, fields: Sequence[str], values: Sequence[Any]) -> Any:
    """Makes a namedtuple of what came from a peer. Raises ProtocolError or ValueError if that is malformed."""
    _check(fields, values)
    found = _imported(name)
    if found is not None and issubclass(found, tuple) and list(getattr(found, "_fields", ())) == list(fields):
        return tuple.__new__(found, values)
    return _namedtuple(_last(name), tuple(fields))._make(values)


def make_dataclass(name: str, fields: Sequence[str], values: Sequence[Any]) -> Any:
    """Makes a dataclass instance of what came from a peer. Raises ProtocolError or ValueError if that is malformed."""
    _check(fields, values)
    found = _imported(name)
    fitting = found if found is not None and _fits(found, fields) else None
    try:
        instance: Any = object.__new__(fitting or _dataclass(_last(name), tuple(fields)))
    except TypeError:  # abstract, or built on a type of C that makes its instances itself
        instance = object.__new__(_dataclass(_last(name), tuple(fields)))
    for field, value in zip(fields, values, strict=True):
        object.__setattr__(instance, field, value)
    return instance


def _check(fields: Sequence[str], values: Sequence[Any]) -> None:
    if len(fields) > MAX_FIELDS or len(fields) != len(values):
        raise ProtocolError(f"a record of {len(fields)} fields and {len(values)} values in a batch description")


def _imported(name: str) -> type | None:
    """Finds a class without importing anything and without running a `__getattr__`."""
    module, _, qualified = name.partition(":")
    found: object = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) else None


def _fits(kind: type, fields: Sequence[str]) -> bool:
    """Whether plain attributes make an instance of a class: a dataclass of these fields, without descriptors."""
    if inspect.getattr_static(kind, "__dataclass_fields__", None) is None:
        return False
    if [field.name for field in dataclasses.fields(kind)] != list(fields):
        return False
    places = [inspect.getattr_static(kind, field, None) for field in fields]
    return all(isinstance(at, types.MemberDescriptorType) or not hasattr(type(at), "__set__") for at in places)


def _last(name: str) -> str:
    last = name.rpartition(":")[2].rpartition(".")[2]
    return last if last.isidentifier() else "Record"


@functools.lru_cache(maxsize=256)
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)  # checks that the names are identifiers


@functools.lru_cache(maxsize=256)
def _dataclass(name: str, fields: tuple[str, ...]) -> type:
    return dataclasses.make_dataclass(name, fields)  # checks that the names are identifiers
