"""One line of a grid: the fields in which its job differs from the grid's job. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

REGION, ENGINE, IMAGE = "region", "engine", "image"
SAGEMAKER = "sagemaker"
"""The engine whose jobs are placed in regions."""
OF_LINES = (REGION, ENGINE, IMAGE)
"""Fields that are no paths into the job: where the line runs, by which engine, and in which image."""

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
"""What JSON can hold."""

_KEY_CHARACTERS = 12
LONGEST_VALUE = 32
"""Characters of a value, where a line is told in few words."""


class Line(msgspec.Struct, frozen=True):
    """See the module. A plan, a journal and a report add to it what they know.

    Attributes:
        index: position among the grid's lines, from 0; lines that its file has no more come last.
        key: of this content, whatever stands before it or is put in between: 12 hexadecimal digits. Of lines with
            equal fields every one has its own.
        place: where it was written, as messages say it: ``array.txt:3``, ``row 3 of the query``.
        fields: path into the job (``hyperparameters.lr``), or one of `OF_LINES`, to value, as JSON can hold it.
    """

    index: int
    key: str
    place: str
    fields: Mapping[str, Any]


AnyLine = TypeVar("AnyLine", bound=Line)


def said_of(fields: Mapping[str, object], beside: Collection[str] = (REGION,)) -> str:
    """Returns what a line says in few words: the last name of each field, and the end of its value: places begin alike.

    Args:
        fields: of the line.
        beside: fields that are told beside it.

    >>> said_of({"region": "eu-west-1", "hyperparameters.lr": 0.1, "inputs.train.path": "s3://b/x"})
    'lr=0.1, train=s3://b/x'
    """
    said = ((name.removesuffix(".path").rpartition(".")[2], fields[name]) for name in fields if name not in beside)
    return ", ".join(f"{name}={_end(value if isinstance(value, str) else json.dumps(value))}" for name, value in said)


def _end(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"…{text[1 - LONGEST_VALUE :]}"


def engine_of(line: Line, otherwise: str) -> str:
    """Returns the engine that runs a line: its own, or `otherwise`."""
    return str(line.fields.get(ENGINE) or otherwise)


def keyed(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Numbers the lines, and gives each its key."""
    seen: Counter[str] = Counter()
    result: list[Line] = []
    for index, line in enumerate(lines):
        content = _canonical(line.fields)
        seen[content] += 1
        digest = hashlib.sha256(f"{content}#{seen[content]}".encode()).hexdigest()
        result.append(msgspec.structs.replace(line, index=index, key=digest[:_KEY_CHARACTERS]))
    return tuple(result)


def digest_of(lines: Iterable[Line]) -> str:
    """Returns what tells two sets of lines apart; their order does not count, as that of a query's rows may not."""
    return hashlib.sha256("\n".join(sorted(line.key for line in lines)).encode()).hexdigest()


def equal_lines(lines: Iterable[AnyLine]) -> tuple[tuple[AnyLine, ...], ...]:
    """Returns the lines that say the same as another one, those that do together, in their order."""
    groups: dict[str, list[AnyLine]] = {}
    for line in lines:
        groups.setdefault(_canonical(line.fields), []).append(line)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _canonical(fields: Mapping[str, Plain]) -> str:
    return json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
