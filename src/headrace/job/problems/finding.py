"""One broken rule, before its file and line are known, and how pydantic's errors become such findings.

Rules yield a `Finding`: the path inside the job, what is allowed, the value seen. They read the job as a model without
what is wrong in it (`fitting`), so that all problems come out at once; `spelt` gives a path the names that the user
chose. `JobSource` turns a finding into a `headrace.errors.Problem`, with file and line when the job came from a file.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from headrace.errors import Broken, Problem
from headrace.sagemaker_parameters import meaning

M = TypeVar("M", bound=BaseModel)

Path = tuple[str | int, ...]
"""Keys and list indices from the top of the job to a value."""

RULE = "headrace_rule"
"""The type of the pydantic errors that `broken` makes."""

_SHOWN = 60  # characters of a value that a message shows


@dataclass(frozen=True)
class Finding:
    """A broken rule at a place in the job.

    Attributes:
        path: where, as the user spelt it.
        message: what is allowed, in one sentence.
        seen: the value, as text; empty when there is none to show.
        hint: what to do, empty when the message says it.
        line: the line, when it is another than that of the value at `path`; else 0.
        code: what SageMaker or its SDK calls this error; empty for a rule of headrace.
        unknown_key: the path ends in a key that nothing is known of, and what it may stand for was not searched.
        broken: what of a service's shape the value breaks; None for every other rule.
    """

    path: Path
    message: str
    seen: str = ""
    hint: str = ""
    line: int = 0
    code: str = ""
    unknown_key: bool = False
    broken: Broken | None = None

    def __post_init__(self) -> None:
        """Raises TypeError for a path that is one text: its letters would be its keys."""
        if not isinstance(self.path, tuple):
            raise TypeError(f"a finding's path is a tuple of keys and indices, not {self.path!r}")


@dataclass(frozen=True)
class JobSource:
    """Where the values of a job were written.

    Attributes:
        file: the job file as the user named it, empty for a job made in Python.
        lines: line (1-based) of every value in the file.
        overrides: the ``--set`` text that wrote a value.
        names: for a job that was made of a request: where in the request a value of the job was.
    """

    file: str = ""
    lines: Mapping[Path, int] = field(default_factory=dict)
    overrides: Mapping[Path, str] = field(default_factory=dict)
    names: Mapping[Path, Path] = field(default_factory=dict)

    def problem(self, finding: Finding) -> Problem:
        """Gives a finding its file and line: those of the value, or of the nearest one around it."""
        override = next(
            (self.overrides[prefix] for prefix in _prefixes(finding.path) if prefix in self.overrides), None
        )
        path = finding.path if override is not None else self.named(finding.path)
        prefixes = _prefixes(path)
        what = meaning(str(path[-1])) if path and path != finding.path else ""
        nearest_line = next((self.lines[prefix] for prefix in prefixes if prefix in self.lines), 0)
        return Problem(
            field=field_text(path) or "job",
            message=finding.message,
            value=finding.seen,
            file=self.file if override is None else f"--set {override}",
            line=(finding.line or nearest_line) if override is None else 0,
            hint="; ".join(filter(None, (finding.hint, what))),
            code=finding.code,
            broken=finding.broken,
        )

    def named(self, path: Path) -> Path:
        """Returns where in the request a value was: its own place, or that of the nearest one around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.names:
                same_names = path[0] == "request_extras" or all(isinstance(step, int) for step in path[length:])
                inside = path[length:] if same_names else ()
                return self.names[path[:length]] + inside
        return path

    def problems(self, findings: Iterable[Finding]) -> tuple[Problem, ...]:
        """Gives findings their places: in file order, each once, then those of ``--set``."""
        unique = dict.fromkeys(self.problem(finding) for finding in findings)
        files = [self.file, *dict.fromkeys(f"--set {text}" for text in self.overrides.values())]
        return tuple(sorted(unique, key=lambda problem: (files.index(problem.file), problem.line)))


def _prefixes(path: Path) -> list[Path]:
    return [path[:length] for length in range(len(path), -1, -1)]


def field_text(path: Path) -> str:
    """Writes a path as users do: ``instance_groups[1].instance_count``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def value_at(tree: object, path: Path) -> object:
    """Returns the value at a place in nested mappings; None when there is none."""
    for step in path:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(step)
    return tree


def show(value: object) -> str:
    """Returns a value as a message shows it: its repr, cut."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the known name that is most like `name`, empty when none is near. CamelCase is read as snake_case."""
    choices = sorted(known)
    if name in choices:
        return name
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
    for cutoff in (0.8, 0.6):
        for spelling in dict.fromkeys((name, snake.replace("-", "_"), name.lower())):
            matches = difflib.get_close_matches(spelling, choices, n=1, cutoff=cutoff)
            if matches:
                return matches[0]
        longer = [choice for choice in choices if len(name) > 2 and choice.startswith(f"{snake}_")]
        if len(longer) == 1:
            return longer[0]
    words = set(snake.split("_"))
    return next((choice for choice in choices if words <= set(choice.split("_"))), "")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Says what was probably meant: the nearest known name, else all of them."""
    choices = list(known)
    near = nearest(name, choices)
    if near:
        return f"did you mean {near!r}?"
    return f"known: {', '.join(choices)}" if choices else "none is known"


def broken(message: str, *, seen: str | None = None, hint: str = "") -> PydanticCustomError:
    """Makes the error that a validator raises; `explain` turns it into a `Finding`.

    Args:
        message: what is allowed.
        seen: what the message shows of the value; None means its repr.
        hint: what to do.
    """
    return PydanticCustomError(RULE, "{message}", {"message": message, "seen": seen, "hint": hint})


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


def fitting(model: type[M], data: object) -> M:
    """Returns data as their model, as far as they fit: a value that is wrong, or required and missing, is None, and so
    is an item of a list. `model_fields_set` has all keys that are given, wrong and unknown ones too.
    """
    mapping = data if isinstance(data, Mapping) else {"": data}
    names, values = _names(model), dict[str, object]()
    for key, value in mapping.items():
        info = model.model_fields.get(names.get(key, ""))
        if info is not None:
            values[names[key]] = _fit(info.rebuild_annotation(), value)
        elif key and model.model_config.get("extra") == "allow":
            values[key] = value
    missing = {name: None for name, info in model.model_fields.items() if info.is_required()}
    return model.model_construct({names.get(key, key) for key in mapping}, **{**missing, **values})


def _fit(annotation: Any, value: object) -> object:
    """Returns what of a value fits a type; None if nothing does."""
    try:
        return _adapter(annotation).validate_python(value)
    except ValidationError:
        pass
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is dict:
        items = value if isinstance(value, Mapping) else {}
        return {key: _fit(get_args(annotation)[1], item) for key, item in items.items()}
    if get_origin(annotation) is tuple:  # one distribution is written as itself; any other value is a wrong item
        listed = value if isinstance(value, (list, tuple)) else [value if isinstance(value, Mapping) else None]
        return tuple(_fit(get_args(annotation)[0], item) for item in listed)
    part = _model_in(annotation)
    return fitting(part, value) if part is not None else None


@functools.cache
def _adapter(annotation: Any) -> TypeAdapter[object]:
    return TypeAdapter(annotation)


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
                full = spelt((*path, *finding.path), data, model)
                is_unknown = finding.unknown_key and model
                yield unknown_key_at(full, model) if is_unknown else replace(finding, path=full)
        else:
            yield _finding(details, spelt(path, data, model), model)


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
    keys = known_keys(path, model) if model and kind in ("model_type", "model_attributes_type") else {}
    return f"write e.g. {{{next(iter(keys))}: ...}}; its keys: {', '.join(keys)}" if keys and path else ""


def unknown_key_at(path: Path, model: type[BaseModel] | None, also: Iterable[str] = ()) -> Finding:
    """Returns that a key is not known: whether a later version will know it, or which known one is near.

    Args:
        path: where it is.
        model: of the whole job.
        also: keys that are known there beside those of the model.
    """
    known_of = elsewhere(path[:1] + path[2:] if path[0] == "distribution" and isinstance(path[1], int) else path)
    if known_of is not None:
        return Finding(path, known_of[0], hint=known_of[1])
    keys = known_keys(path[:-1], model) if model else {}
    name = str(path[-1])
    if name in keys:
        return Finding(path, f"is another name of {keys[name]!r}, which is given as well", hint="give one of the two")
    return Finding(path, f"{UNKNOWN}; {suggestion(name, dict.fromkeys((*keys, *also)))}")


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
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)


def spelt(path: Path, data: object, model: type[BaseModel] | None) -> Path:
    """Makes a path of fields' names, or of pydantic's, one of the user's.

    It has the names that the user chose, and ends at the value that it passes through when that value is no mapping or
    list. An item of what the user wrote as one mapping, and not as a list, has no index.
    """
    if isinstance(data, Mapping) and path[:2] == ("distribution", 0) and isinstance(data.get("distribution"), Mapping):
        path = path[:1] + path[2:]
    for length, step in enumerate(path):
        if isinstance(data, Mapping):
            if step not in data and model is not None:
                key = _key_of(str(step), data, known_keys(path[:length], model))
                path = (*path[:length], key, *path[length + 1 :])
            data = data.get(path[length])
        elif isinstance(data, (list, tuple)) and isinstance(step, int) and step < len(data):
            data = data[step]
        elif isinstance(data, (str, int, float, os.PathLike)):
            return path[:length]
        else:
            return path
    return path


def _key_of(field_name: str, data: Mapping[Any, object], names: Mapping[str, str]) -> str:
    """Returns the key of a field in a mapping: the one that is there, else of its names the one that goes with what is
    there, ``count`` beside ``name`` and ``type``, ``Value`` beside ``Key``."""
    keys_of: dict[str, list[str]] = {}
    for key, name in names.items():
        keys_of.setdefault(name, []).append(key)
    own = keys_of.get(names.get(field_name, field_name), [field_name])
    if written := next((key for key in own if key in data), None):
        return written
    positions = (keys.index(key) for keys in keys_of.values() if len(keys) > 1 for key in keys if key in data)
    return own[min(next(positions, 0), len(own) - 1)]


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
