"""From what a Python caller may write to plain data, as a job file holds it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pydantic import BaseModel

from headrace.job.fields import InstanceGroup
from headrace.job.findings import Finding, Path, show


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
