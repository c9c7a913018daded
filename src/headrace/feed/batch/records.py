"""Instances of classes in a batch: what they hold, and instances made of what came from a peer.

Namedtuples, dataclasses, `UserDict`s, enums, subclasses of Python's own types and of Tensor: a peer names a class and
what it holds. What is made of that is an instance of the class with this name if it has been imported here already and
fits, else of an equivalent class made on the spot. Either way no code of the user's class is called: no import, no
module or class `__getattr__`, no `__new__`, `__init__`, `__post_init__`, `__setattr__` and no property; they have done
their work where the instance was first made. So a peer can choose nothing but which plain record it fills.

What would be lost on the way is refused where it is made (`Refusal`).
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import inspect
import sys
import types
from collections import OrderedDict, UserDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.errors import PipelineError, ProtocolError

MAX_FIELDS = 1_000
_DEFINED_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def name_of(kind: type) -> str:
    """Returns the name under which a class is looked for elsewhere: ``module:qualified.name``."""
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__  # the script, in a spawned process
    return f"{module}:{kind.__qualname__}"


class Refusal(Exception):
    """A value that cannot travel; whoever goes through a tree completes its place."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.text, self.hint, self.place = text, hint, ""


def is_record(value: object) -> bool:
    """Returns whether a value is an instance of a dataclass, or of `UserDict`, which holds its dict as an attribute."""
    return (not isinstance(value, type) and dataclasses.is_dataclass(value)) or isinstance(value, UserDict)


def values_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a record that have a value."""
    if isinstance(value, UserDict):
        return dict(vars(value))
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}


def checked_values(value: Any) -> dict[str, Any]:
    """Returns the fields of a record that is to travel.

    Raises:
        Refusal: it has attributes that are no fields, which would be lost, or a field without a value.
    """
    values = values_of(value)
    kind = type(value)
    names = list(values) if isinstance(value, UserDict) else [field.name for field in dataclasses.fields(value)]
    lost = [
        name
        for name in getattr(value, "__dict__", {})
        if name not in names and not isinstance(inspect.getattr_static(kind, name, None), functools.cached_property)
    ]
    unset = [name for name in names if name not in values]
    if lost or unset:
        what = f"attributes that are no fields: {', '.join(lost)}" if lost else f"no value for {', '.join(unset)}"
        raise Refusal(
            f"a {_full_name(kind)} with {what}",
            "declare what belongs to the batch as fields of the dataclass, and give each a value",
        )
    return values


def subclass_name(value: Any) -> str:
    """Returns the name of the class of an instance of a subclass of a type of Python's own, which is to travel.

    Raises:
        Refusal: the instance has attributes, which would be lost, or its class is one of C.
    """
    kind = type(value)
    slots = [name for base in kind.__mro__ for name in vars(base) if _is_slot(base, name) and hasattr(value, name)]
    lost = [*getattr(value, "__dict__", ()), *slots]
    if lost:
        raise Refusal(
            f"a {_full_name(kind)} with attributes, which would be lost: {', '.join(lost)}",
            "return a dataclass, or a dict with these as items",
        )
    if kind not in _of_c() and not kind.__flags__ & _DEFINED_IN_PYTHON:
        raise Refusal(f"a {_full_name(kind)} cannot travel between processes", "return its values as a list or dict")
    return name_of(kind)


def _is_slot(base: type, name: str) -> bool:
    of_python = base.__flags__ & _DEFINED_IN_PYTHON
    return bool(of_python) and isinstance(vars(base)[name], types.MemberDescriptorType)


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _of_c() -> tuple[Any, ...]:
    """Returns the subclasses of Python's own types, written in C, that are known: they make their instances."""
    torch = sys.modules.get("torch")
    return (np.str_, np.bytes_, *([torch.Size] if torch is not None else ()))


def replaced(value: Any, values: Sequence[Any]) -> Any:
    """Returns a copy of a record with other values in its fields."""
    result = copy.copy(value)
    for name, item in zip(values_of(value), values, strict=True):
        object.__setattr__(result, name, item)
    return result


def make_namedtuple(name: str, fields: Sequence[str], values: Sequence[Any]) -> Any:
    """Makes a namedtuple of what came from a peer. Raises ProtocolError or ValueError if that is malformed."""
    _check(fields, values)
    found = _imported(name)
    if found is not None and issubclass(found, tuple) and list(getattr(found, "_fields", ())) == list(fields):
        return tuple.__new__(found, values)
    return _namedtuple(_last(name), tuple(fields))._make(values)


def make_record(name: str, fields: Sequence[str], values: Sequence[Any]) -> Any:
    """Makes a dataclass instance of what came from a peer. Raises ProtocolError or ValueError if that is malformed."""
    _check(fields, values)
    return _filled(_dataclass(_last(name), tuple(fields)), name, fields, values)


def make_mapping(name: str, fields: Sequence[str], values: Sequence[Any]) -> Any:
    """Makes a `UserDict` of what came from a peer. Raises ProtocolError or ValueError if that is malformed."""
    _check(fields, values)
    return _filled(_equivalent(_last(name), UserDict), name, fields, values)


def _filled(equivalent: type, name: str, fields: Sequence[str], values: Sequence[Any]) -> Any:
    found = _imported(name)
    try:
        instance: Any = object.__new__(found if found is not None and _fits(found, fields) else equivalent)
    except TypeError:  # abstract, or built on a type of C that makes its instances itself
        instance = object.__new__(equivalent)
    for field, value in zip(fields, values, strict=True):
        object.__setattr__(instance, field, value)
    return instance


def make_subclass(base: type, name: str, content: Any) -> Any:
    """Makes an instance of a subclass of one of Python's own types, with content that came from a peer.

    Args:
        base: list, tuple, dict, OrderedDict, str, int, float, complex or bytes.
        name: of the class.
        content: of type `base`.
    """
    found = _imported(name)
    if found is not None and found in _of_c() and issubclass(found, base):
        made_by_itself: Any = found
        return made_by_itself(content)
    if found is None or not issubclass(found, base) or issubclass(found, enum.Enum):
        found = _equivalent(_last(name), base)
    if base not in (list, dict, OrderedDict):
        return base.__new__(found, content)
    instance: Any = base.__new__(found)
    if base is list:
        list.extend(instance, content)
    else:
        for key, value in content.items():
            base.__setitem__(instance, key, value)
    return instance


def make_member(name: str, member: str) -> Any:
    """Returns the member of an enum. Raises PipelineError if the enum is not known here: it has no equivalent."""
    found = _imported(name)
    if found is None or not issubclass(found, enum.Enum):
        raise PipelineError(
            f"a batch holds {member!r} of the enum {name.replace(':', '.')}, which the trainer has not imported",
            hint="import it where the loader is made, or put the member's value into the batch",
        )
    members: dict[str, Any] = inspect.getattr_static(found, "_member_map_")
    return members[member]


def make_tensor(name: str, fields: Sequence[str], values: Sequence[Any]) -> Any:
    """Makes an instance of a subclass of Tensor: the first value is the tensor, the others are its attributes."""
    import torch

    tensor, *others = values
    _check(fields, others)
    found = _imported(name)
    if found is None or not issubclass(found, torch.Tensor):
        found = _equivalent(_last(name), torch.Tensor)
    made: Any = torch.Tensor.as_subclass(tensor, found)
    vars(made).update(zip(fields, others, strict=True))
    return made


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
    if UserDict in kind.__mro__:
        return not any(hasattr(type(inspect.getattr_static(kind, field, None)), "__set__") for field in fields)
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


@functools.lru_cache(maxsize=256)
def _equivalent(name: str, base: type) -> type:
    return type(name, (base,), {})
