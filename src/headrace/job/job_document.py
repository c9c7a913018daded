"""The text of a job file: YAML in and out, what ``--set`` changes in it, and from Python's arguments to plain data.

The text of a job file: YAML in, plain data and the line of every value out; and back.

The dialect is YAML 1.2's core: ``true`` and ``false`` are the only booleans, ``1e-3`` is a number, ``on`` and
``12:30`` are text. A key is always text. Anchors and aliases work; tags of other kinds, merge keys and keys that come
twice are refused. Nothing in a file can run code or use memory beyond its size times a small factor.

``--set a.b.c=value``: values that replace those of the job file.

A path is keys and list indices: ``hyperparameters.epochs``, ``instance_groups[0].count`` or
``instance_groups.0.count``; a key with a dot in it goes in quotes: ``inputs."my.data".path``. The value is YAML. An
empty value, or ``null``, takes a top-level key out; a variable of ``environment`` takes the text as it is. Whether a
path is known is decided by the rules that also check the file.

From what a Python caller may write to plain data, as a job file holds it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import yaml
from pydantic import BaseModel
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from headrace.job.model.fields import InstanceGroup, JobFields
from headrace.job.problems.finding import Finding, Path, known_keys, show

MAX_BYTES = 4_000_000
"""A larger file is not read. The largest request that the service takes has less than 1 MB."""

_MAX_VALUES = 100_000
_MAX_NODES = 2 * _MAX_VALUES + 1_000  # keys and values that are written; aliases come on top
_TOO_MANY = f"must hold at most {_MAX_VALUES} values"
_TAG = "tag:yaml.org,2002:"
_READ = frozenset(_TAG + kind for kind in ("str", "null", "bool", "int", "float"))
_RESOLVERS = (
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("bool", r"true|True|TRUE|false|False|FALSE", tuple("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", tuple("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        tuple("-+.0123456789"),
    ),
)


# Python and JSON allow these in a string as they are. YAML does not, or takes them for the end of a line.
_AWKWARD = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012  # PyYAML's own way to begin without YAML 1.1's
    nodes = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self.nodes += 1
        if self.nodes > _MAX_NODES:
            raise _TooManyValues
        return super().compose_node(parent, index)


class _TooManyValues(Exception):
    """Ends the reading of a file that holds more than any job."""


class _Dumper(yaml.SafeDumper):
    """Quotes whatever YAML 1.1 or 1.2 would not read as text."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_text(dumper: _Dumper, text: str) -> ScalarNode:
    return dumper.represent_scalar(_TAG + "str", text, style='"' if _AWKWARD.search(text) else None)


_Dumper.add_representer(str, _represent_text)
for _name, _pattern, _first in _RESOLVERS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), list(_first))


@dataclass
class Document:
    """A job file that was read.

    Attributes:
        data: plain values; empty when the file holds no mapping.
        lines: line (1-based) of every value.
        findings: what is wrong with the text itself.
    """

    data: dict[str, object] = field(default_factory=dict)
    lines: dict[Path, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def read(text: str) -> Document:
    """Reads a job file. Never raises: what is wrong is in the document's findings."""
    document = Document()
    try:
        root = _compose(text)
        if root is None:
            document.findings.append(Finding((), "is empty"))
        elif not isinstance(root, MappingNode):
            document.lines[()] = root.start_mark.line + 1
            document.findings.append(Finding((), "must be a mapping of keys to values"))
        else:
            value = _Builder(document).build(root, (), root.start_mark.line + 1)
            document.data = value if isinstance(value, dict) else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        document.lines[()] = mark.line + 1 if mark else 1
        what = ", ".join(part for part in (error.context, error.problem) if part)
        document.findings.append(Finding(("YAML",), what))
    except yaml.reader.ReaderError as error:
        document.lines[()] = text.count("\n", 0, error.position) + 1
        document.findings.append(Finding(("YAML",), "must hold no control characters", f"{error.character!r}"))
    except RecursionError:
        document.findings.append(Finding((), "is nested too deeply"))
    except _TooManyValues:
        document.findings.append(Finding((), _TOO_MANY))
    return document


def read_value(text: str) -> object:
    """Reads one value, as ``--set`` takes it: YAML, of which nothing is left out.

    A text that YAML would read only in part (``a #1``, ``&x y``, ``|``) is text as it stands.

    Raises:
        ValueError: no YAML value; the message says why.
    """
    document = Document()
    try:
        node = _compose(text)
        if _is_cut(node, text):
            return text
        value = None if node is None else _Builder(document).build(node, (), 1)
    except _TooManyValues:
        raise ValueError(_TOO_MANY) from None
    except (yaml.YAMLError, RecursionError) as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "nested too deeply"
        raise ValueError(str(problem)) from None
    if document.findings:
        raise ValueError(document.findings[0].message)
    return value


def write(data: Mapping[str, object]) -> str:
    """Writes plain data as a job file, in its order."""
    return yaml.dump(
        dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110
    )


def write_json(data: Mapping[str, object]) -> str:
    """Writes plain data as JSON that `read` reads too."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    return _AWKWARD.sub(lambda match: "\n" if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text) + "\n"


def _compose(text: str) -> Node | None:
    return yaml.compose(text, Loader=_Loader)


def _is_cut(node: Node | None, text: str) -> bool:
    """Tells whether a scalar says less than the text that it was read from: a comment, an anchor, a block's mark."""
    written = text.strip()
    if node is None:
        return bool(written)
    if not isinstance(node, ScalarNode) or node.tag not in _READ:
        if isinstance(node, (SequenceNode, MappingNode)) and node.flow_style and text[node.end_mark.index :].strip():
            raise ValueError(f"{text[node.end_mark.index :].strip()!r} stands behind the value")
        return False
    if node.style in ("'", '"'):
        return not written[:1] == node.style == written[-1:]
    return bool(node.value != written)


class _Builder:
    """Makes values of nodes, and notes lines and findings on the way."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._open: set[int] = set()
        self._count = 0

    def build(self, node: Node, path: Path, line: int) -> object:
        self._document.lines[path] = line
        self._count += 1
        if id(node) in self._open:
            self._refuse(path, "must not contain itself")
            return None
        if self._count > _MAX_VALUES:
            if self._count == _MAX_VALUES + 1:
                self._refuse((), _TOO_MANY)
            return None
        self._open.add(id(node))
        try:
            return self._value(node, path)
        finally:
            self._open.discard(id(node))

    def _value(self, node: Node, path: Path) -> object:
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        kind = "map" if isinstance(node, MappingNode) else "seq"
        if node.tag != _TAG + kind:
            self._refuse(path, f"has a tag that is not supported: {_shown_tag(node.tag)}")
            return None
        if isinstance(node, SequenceNode):
            items: list[object] = []
            for index, item in enumerate(node.value):
                if self._count > _MAX_VALUES:
                    break
                items.append(self.build(item, (*path, index), item.start_mark.line + 1))
            return items
        return self._mapping(node.value, path)

    def _mapping(self, pairs: list[tuple[Node, Node]], path: Path) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node in pairs:
            if self._count > _MAX_VALUES:
                break
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode):
                self._document.lines.setdefault((*path, "?"), line)
                self._refuse((*path, "?"), "keys must be text")
                continue
            key = _paired(key_node.value)
            place = (*path, key)
            if key == "<<" and not key_node.style:
                self._document.lines.setdefault(place, line)
                self._refuse(place, "merge keys are not supported", "write the keys out")
            elif key in result:
                self._twice(place, line)
            else:
                result[key] = self.build(value_node, place, line)
        return result

    def _twice(self, path: Path, line: int) -> None:
        message = f"is given twice: in line {self._document.lines[path]} and again here"
        self._document.findings.append(Finding(path, message, hint="keep one of the two", line=line))

    def _scalar(self, node: ScalarNode, path: Path) -> object:
        kind, text = node.tag.removeprefix(_TAG), node.value
        try:
            if kind == "str":
                return _paired(text)
            if kind == "null":
                return None
            if kind == "bool" and text.lower() in ("true", "false"):
                return text.lower() == "true"
            if kind == "int":
                return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
            if kind == "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            self._refuse(path, f"is no {kind} that can be read")
            return None
        self._refuse(path, f"has a tag that is not supported: {_shown_tag(node.tag)}")
        return None

    def _refuse(self, path: Path, message: str, hint: str = "") -> None:
        self._document.findings.append(Finding(path, message, hint=hint))


def _paired(text: str) -> str:
    r"""Joins the surrogate pairs of a text: JSON writes "\ud83d\ude00" for one character, YAML reads it as two.

    >>> _paired("\ud83d\ude00") == "\U0001f600"
    True
    """
    return _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)


def _shown_tag(tag: str) -> str:
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag


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
    result.texts = {old: by for old, by in result.texts.items() if old[: len(final)] != final} | {final: text}


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
    for name, info in model.model_fields.items():
        value = getattr(part, name)
        empty = value is None or value in ((), {}, "") or (value is False and info.default is False)
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
