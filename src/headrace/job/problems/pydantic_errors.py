"""From pydantic's errors to findings: the user's own spelling, what is allowed, the nearest known key."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import get_args, get_origin

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headrace.job.problems.finding import RULE, Finding, Path, show, suggestion

UNKNOWN = "unknown key"
_UNKNOWN_KEYS = 100  # that are named
_MESSAGES = {
    "missing": "is required",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
}


def examine(model: type[BaseModel], data: Mapping[str, object]) -> list[Finding]:
    """Returns every value of `data` that does not fit the model."""
    try:
        model.model_validate(data)
    except ValidationError as error:
        return list(explain(error, model, data))
    return []


def explain(error: ValidationError, model: type[BaseModel] | None = None, data: object = None) -> Iterator[Finding]:
    """Yields one finding for each of pydantic's errors.

    Args:
        error: what validation raised.
        model: the model that was validated, for the nearest known key; None means the one named by the error.
        data: what was validated; a path ends where its values end.
    """
    unknown = 0
    for details in error.errors(include_url=False):
        unknown += details["type"] == "extra_forbidden"
        if unknown > _UNKNOWN_KEYS and details["type"] == "extra_forbidden":
            continue  # a longer list helps no reader, and each takes time
        inner = details.get("ctx", {}).get("error")
        path = tuple(step for step in details["loc"] if step != "[key]")
        if isinstance(inner, ValueError) and hasattr(inner, "findings"):
            for finding in inner.findings:
                full = _cut((*path, *finding.path), data)
                is_unknown = finding.unknown_key and model
                yield unknown_key_at(full, model) if is_unknown else replace(finding, path=full)
        else:
            yield _finding(details, path if data is None else _cut(path, data), model)


def _finding(details: ErrorDetails, path: Path, model: type[BaseModel] | None) -> Finding:
    context = details.get("ctx", {})
    kind = details["type"]
    if kind == RULE:
        seen = show(details["input"]) if context["seen"] is None else context["seen"]
        return Finding(path, context["message"], seen, context["hint"])
    if kind == "extra_forbidden":
        return unknown_key_at(path, model) if model else Finding(path, UNKNOWN, unknown_key=True)
    if kind == "missing":
        return Finding(path, _MESSAGES[kind])
    return Finding(path, _MESSAGES.get(kind, details["msg"]), show(details["input"]), _mapping_hint(path, kind, model))


def _mapping_hint(path: Path, kind: str, model: type[BaseModel] | None) -> str:
    """Returns how to write a mapping where something else was given: the keys that it takes."""
    known = known_keys(path, model) if model and kind in ("model_type", "model_attributes_type") else {}
    return f"write e.g. {{{next(iter(known))}: ...}}; its keys: {', '.join(known)}" if known and path else ""


def unknown_key_at(path: Path, model: type[BaseModel] | None) -> Finding:
    """Returns that a key is not known: whether a later version will know it, or which known one is near."""
    known_of = elsewhere(path[:1] + path[2:] if path[0] == "distribution" and isinstance(path[1], int) else path)
    if known_of is not None:
        return Finding(path, known_of[0], hint=known_of[1])
    known = known_keys(path[:-1], model) if model else {}
    name = str(path[-1])
    if name in known:
        return Finding(path, f"is another name of {known[name]!r}, which is given as well", hint="give one of the two")
    return Finding(path, f"{UNKNOWN}; {suggestion(name, known)}")


def known_keys(path: Path, model: type[BaseModel]) -> dict[str, str]:
    """Returns the keys that are known at a path, each with SageMaker's name of its field.

    Args:
        path: of a mapping in the job.
        model: of the whole job.
    """
    current: type[BaseModel] | None = model
    steps = iter(enumerate(path))
    for position, step in steps:
        names = _names(current) if current else {}
        if not isinstance(step, str) or step not in names or current is None:
            return {}
        annotation = current.model_fields[names[step]].annotation
        current = _model_in(annotation)
        if get_origin(annotation) is dict:
            next(steps, None)  # the channel's name
        elif get_origin(annotation) is tuple and position + 1 < len(path) and isinstance(path[position + 1], int):
            next(steps, None)  # the group's index; one distribution has none
    return _names(current) if current else {}


@functools.cache
def _names(model: type[BaseModel]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name, info in model.model_fields.items():
        alias = info.validation_alias
        choices = [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [name]
        names.update(dict.fromkeys(choices, name))
    return names


def _model_in(annotation: object) -> type[BaseModel] | None:
    if get_origin(annotation) is None and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation  # to Python 3.10 dict[str, str] is a type too, of which an old pydantic's check raises
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def _cut(path: Path, data: object) -> Path:
    """Makes a path of pydantic's one of the user's.

    It ends at the value that it passes through when that value is no mapping or list. An item of what the user wrote as
    one mapping, and not as a list, has no index.
    """
    if isinstance(data, Mapping) and path[:2] == ("distribution", 0) and isinstance(data.get("distribution"), Mapping):
        path = path[:1] + path[2:]
    for length, step in enumerate(path):
        if isinstance(data, Mapping):
            data = data.get(step)
        elif isinstance(data, (list, tuple)) and isinstance(step, int) and step < len(data):
            data = data[step]
        elif isinstance(data, (str, int, float, os.PathLike)):
            return path[:length]
        else:
            return path
    return path


NOT_YET = "is not supported yet"
ELSEWHERE = "has another place in a job file"

_LOCAL = "use engines: {local: ...}"

# `*` stands for any key or index.
_LATER: dict[str, str] = {
    "version": "leave it out",
    "engine": "choose it where the job is started: headrace run, or Job.fit(engine='local')",
    "budget.on_exceed": "leave it out: the job is stopped",
    "array": "write one job file for each, or use --set",
    "placement": "",
    "instance_groups.*.image_uri": "all groups run the same image",
    "instance_groups.*.ports": "ports for the whole job: engines.local.ports",
    "completion.failure": "the first failure ends the job",
    "engines.sagemaker": _LOCAL,
    "engines.ray": _LOCAL,
    "engines.batch": _LOCAL,
}

_MOVED: dict[str, str] = {
    "max_run": "write stopping_condition: {max_run: seconds}",
    "max_wait": "write stopping_condition: {max_wait: seconds}",
    "max_retry_attempts": "write retry: {attempts: 3}",
    "retry_strategy": "write retry: {attempts: 3}",
    "container_entry_point": "write command: [program, argument, ...]",
    "container_arguments": "write command: [program, argument, ...]",
    "distribution.custom_mpi_options": "write mpi: {enabled: true, custom_mpi_options: ...}",
    "distribution.processes_per_host": "write it into the strategy: mpi: {enabled: true, processes_per_host: 2}",
    "completion.success": "name the groups with completion: {instance_groups: [...]}",
    "completion.then_stop": "set the grace with engines: {local: {stop_grace: seconds}}",
    "debugger_hook_config": "write request_extras: {DebugHookConfig: {...}}",
    "profiler_config": "write request_extras: {ProfilerConfig: {...}}",
    "tensorboard_output_config": "write request_extras: {TensorBoardOutputConfig: {...}}",
    "experiment_config": "write request_extras: {ExperimentConfig: {...}}",
    "inputs.*.file_system_id": "mount the file system and name the folder with path",
    "inputs.*.target_attribute_name": "name it in attribute_names",
    "engines.local.cpus": "use cpu_sets or cpu_shares",
    "engines.local.gpu": "use gpus",
    "engines.local.link": "use network: {group: {bandwidth: 200mbit}}",
}


def elsewhere(path: Path) -> tuple[str, str] | None:
    """Returns what to say of a key that is not known here, and what to write today; None when no version knows it."""
    for keys, message in ((_LATER, NOT_YET), (_MOVED, ELSEWHERE)):
        for pattern, hint in keys.items():
            if _matches(path, pattern.split(".")):
                return message, hint
    return None


def _matches(path: Path, pattern: list[str]) -> bool:
    return len(path) == len(pattern) and all(want in ("*", step) for step, want in zip(path, pattern, strict=True))
