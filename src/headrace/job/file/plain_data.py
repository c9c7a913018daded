"""From what a Python caller may write to plain data, as a job file holds it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pydantic import BaseModel

from headrace.job.model.fields import InstanceGroup
from headrace.job.problems.finding import Finding, Path, show


def plain(given: Mapping[str, object]) -> tuple[dict[str, object], list[Finding]]:
    """Makes plain data of keyword arguments: parts become mappings, tuples lists, paths text, None is left out.

    An `InstanceGroup` where the name of one is wanted becomes its name, as in the SageMaker SDK.

    Returns:
        The data, and what cannot be written in a job file.
    """
    findings: list[Finding] = []
    data = {key: _plain(value, (key,), findings) for key, value in given.items() if value is not None}
    return data, findings


def _plain(value: object, path: Path, findings: list[Finding]) -> object:
    if isinstance(value, InstanceGroup) and not (len(path) == 2 and path[0] == "instance_groups"):
        return value.instance_group_name
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                findings.append(Finding((*path, str(key)), "keys must be strings", show(key)))
        return {str(key): _plain(item, (*path, str(key)), findings) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, (*path, index), findings) for index, item in enumerate(value)]
    return value


def dump(part: BaseModel, model: type[BaseModel]) -> dict[str, object]:
    """Makes plain data of a part of a job, in its order. What is empty is left out, except in free-form mappings.

    Args:
        part: the part.
        model: the class whose fields are written.
    """
    result: dict[str, object] = {}
    for name, field in model.model_fields.items():
        value = getattr(part, name)
        empty = value is None or value in ((), {}, "") or (value is False and field.default is False)
        written = None if empty else _dumped(name, value)
        if written is not None and not (isinstance(value, BaseModel) and written == {}):
            result[name] = written
    result.update((name, _dumped("", value)) for name, value in (part.model_extra or {}).items())
    return result


def _dumped(name: str, value: object) -> object:
    if isinstance(value, BaseModel):
        return dump(value, type(value))
    if isinstance(value, tuple):
        items = [_dumped("", item) for item in value]
        return items[0] if name == "distribution" and len(items) == 1 else items
    if isinstance(value, Mapping):
        return {key: _dumped("", item) for key, item in value.items()}
    return value
