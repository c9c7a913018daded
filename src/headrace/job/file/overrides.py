"""``--set a.b.c=value``: values that replace those of the job file.

A path is keys and list indices: ``hyperparameters.epochs``, ``instance_groups[0].count`` or
``instance_groups.0.count``; a key with a dot in it goes in quotes: ``inputs."my.data".path``. The value is YAML. An
empty value, or ``null``, takes a top-level key out; a variable of ``environment`` takes the text as it is. Whether a
path is known is decided by the rules that also check the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.job.file.yaml_document import read_value
from headrace.job.model.fields import JobFields
from headrace.job.problems.finding import Finding, Path
from headrace.job.problems.pydantic_errors import known_keys

_STEP = re.compile(r'(?:^|\.)(?:"([^"]*)"|([^."\[\]]+))|\[([0-9]+)\]')


@dataclass
class Overridden:
    """Plain data after all overrides.

    Attributes:
        data: the job.
        texts: the ``--set`` text of every value that one wrote.
        findings: overrides that could not be applied.
    """

    data: dict[str, object]
    texts: dict[Path, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def apply(data: Mapping[str, object], overrides: Iterable[str]) -> Overridden:
    """Applies overrides, in their order; a later one wins. `data` itself is not changed."""
    result = Overridden({key: _copied(value) for key, value in data.items()})
    for text in overrides:
        path: Path = ()
        try:
            path = parse_path(text)
            _set(result, path, _value(path, text), text)
        except ValueError as error:
            place = path or ("--set",)
            result.texts[place] = text
            result.findings.append(Finding(place, str(error)))
    return result


def apply_values(data: Mapping[str, object], values: Iterable[tuple[Path, object]], text: str) -> Overridden:
    """Puts values at their places, in their order. Neither `data` nor the values are changed.

    Each value counts: one that takes the place of an earlier one, or of what that is a part of, is a finding.

    Args:
        data: the job.
        values: place and value. A group of `instance_groups` may be called by its name.
        text: what `Overridden.texts` shall hold for each.
    """
    result = Overridden({key: _copied(value) for key, value in data.items()})
    for path, value in values:
        try:
            _set(result, _by_group_name(path, result.data), _copied(value), text, once=True)
        except ValueError as error:
            result.texts[path] = text
            result.findings.append(Finding(path, str(error)))
    return result


def _by_group_name(path: Path, data: Mapping[str, object]) -> Path:
    groups = data.get("instance_groups")
    if len(path) < 2 or path[0] != "instance_groups" or not isinstance(groups, list):
        return path
    names = [group.get("name", group.get("instance_group_name")) for group in groups if isinstance(group, dict)]
    if path[1] in names:
        return (path[0], names.index(path[1]), *path[2:])
    if isinstance(path[1], str) and not path[1].isdecimal():
        raise ValueError(f"there is no group {path[1]!r}; there are {', '.join(map(str, names))}")
    return path


def parse_path(text: str) -> Path:
    """Reads the path of an override; a number in brackets is an index.

    Raises:
        ValueError: not of the form ``path=value``.
    """
    name, equals, _ = text.partition("=")
    path = parse_place(name)
    if not equals or not path:
        raise ValueError("must be a path and a value, such as hyperparameters.epochs=3")
    return path


def parse_place(name: str) -> Path:
    """Reads a path; empty when the text is none."""
    path: list[str | int] = []
    position = 0
    while position < len(name):
        step = _STEP.match(name, position)
        if not step or (position == 0 and name[0] in ".["):
            path.clear()
            break
        path.append(int(step[3]) if step[3] is not None else step[1] if step[1] is not None else step[2])
        position = step.end()
    return tuple(path)


def _value(path: Path, text: str) -> object:
    written = text.partition("=")[2]
    if "environment" in path[-2:-1]:
        return written  # variables are text, and a shell takes quotes away
    try:
        return read_value(written)
    except ValueError as error:
        raise ValueError(f"the value is not YAML: {error}") from None


def _set(result: Overridden, path: Path, value: object, text: str, *, once: bool = False) -> None:
    parent: dict[str, object] | list[object] = result.data
    done: list[str | int] = []
    earlier = tuple(result.texts)
    for position, step in enumerate(path):
        last = position == len(path) - 1
        if isinstance(parent, list):
            index = _index(parent, step)
            done.append(index)
            child = value if last else _container(parent[index], tuple(done))
            parent[index] = child
        else:
            key = _spelling(parent, tuple(done), str(step))
            done.append(key)
            if parent.get(key) is None:
                result.texts[tuple(done)] = text
            child = value if last else _container(parent.get(key), tuple(done))
            parent[key] = child
        if isinstance(child, (dict, list)):
            parent = child
    final = tuple(done)
    if once and any(old[: len(final)] == final for old in earlier):
        raise ValueError("is given twice: it takes the place of what is given before for it, or for a part of it")
    # What an earlier override wrote below this place is gone.
    result.texts = {old: said for old, said in result.texts.items() if old[: len(final)] != final} | {final: text}


def _copied(value: object) -> object:
    """Copies plain data; `copy.deepcopy` takes five times as long."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _container(value: object, path: Path) -> dict[str, object] | list[object]:
    if value is None:
        return {}
    if isinstance(value, (dict, list)):
        return value
    if len(path) == 2 and path[0] == "inputs" and isinstance(value, str):
        return {"path": value}  # a channel that is a bare path
    raise ValueError("has no keys or items: it is one value")


def _index(items: list[object], step: str | int) -> int:
    if isinstance(step, str) and not step.isdecimal():
        raise ValueError(f"a list has indices, not the key {step!r}")
    if int(step) >= len(items):
        raise ValueError(f"has no item {step}; there are {len(items)}, counted from 0")
    return int(step)


def _spelling(parent: Mapping[str, object], path: Path, key: str) -> str:
    """Returns the other name of a key when the file uses that one: count for instance_count."""
    names = known_keys(path, JobFields)
    same = (name for name, field_name in names.items() if key in names and field_name == names[key] and name in parent)
    return key if key in parent else next(same, key)
