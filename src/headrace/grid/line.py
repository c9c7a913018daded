"""One line of a grid: the fields in which its job differs from the grid's job; and how named cells become lines, which
file, query and matrix have in common. Pure."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

import msgspec

from headrace.errors import Problem
from headrace.job.model.field_types import known_regions, text_of
from headrace.job.problems.finding import nearest, show

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


MAX_LINES = 100_000
"""A grid has no more. AWS Batch takes 10,000 in an array."""

MOST_PROBLEMS = 200
"""So many problems are told at once."""


@dataclass
class LineTable:
    """Lines that were read so far, and what is wrong with others.

    Attributes:
        source: what they are read from, as messages name it.
        known: keys of a job file, which paths begin with.
        lines: those without a problem.
        problems: of all others, in their order.
    """

    source: str
    known: frozenset[str]
    lines: list[Line] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def refuse(
        self, what: str, message: str, *, line: int = 0, seen: str = "", hint: str = "", place: str = ""
    ) -> None:
        """Notes a problem.

        Args:
            what: the field or column that it is about.
            message: what is wrong and what is allowed.
            line: 1-based, in the file; 0 when there is none.
            seen: the value.
            hint: what to do.
            place: of a line that stands in no file.
        """
        self.problems.append(Problem(what, message, seen, place or self.source, 0 if place else line, hint))

    def columns(self, names: Sequence[str], line: int = 0) -> tuple[str, ...] | None:
        """Checks the names of columns, and returns the paths that they stand for; None after a problem."""
        before = len(self.problems)
        for name in dict.fromkeys(names):
            first = re.split(r"[.\[]", name, maxsplit=1)[0]
            if not name:
                self.refuse("columns", "a column needs a name: a field of the job, or region", line=line)
            elif names.count(name) > 1:
                self.refuse(name, "comes twice", line=line)
            elif name not in OF_LINES and first not in self.known:
                near = nearest(first, (*OF_LINES, *self.known))
                hint = f"did you mean {near!r}?" if near else (
                    f"is it a hyperparameter? Name it hyperparameters.{name}, or say what the column stands for: "
                    f"columns: {{{name}: hyperparameters.{name}}}"
                )  # fmt: skip
                self.refuse(name, "is no field of a job", line=line, hint=hint)
        return None if len(self.problems) > before else tuple(names)

    def add(self, fields: Mapping[str, object], place: str, line: int = 0) -> None:
        """Adds a line, or the problems that it has.

        Args:
            fields: path and value. None means that the line says nothing about a field.
            place: of the line, as messages name it.
            line: 1-based, in the file; 0 for a line that stands in none.
        """
        before = len(self.problems)
        refuse = partial(self.refuse, line=line, place="" if line else place)
        plain: dict[str, Plain] = {}
        for path, value in fields.items():
            if path == REGION and (value is None or value not in known_regions()):
                near = nearest(str(value or ""), known_regions())
                hint = f"did you mean {near!r}?" if near else (
                    "such as us-east-1; without the column the grid's placement chooses"
                )  # fmt: skip
                refuse(path, "must be a region", seen=show(value) if value else "", hint=hint)
            elif path in (ENGINE, IMAGE) and not (value is None or (isinstance(value, str) and value)):
                refuse(path, "must be text", seen=show(value))
            elif value is not None:
                try:
                    plain[path] = plain_value(value)
                except ValueError as error:
                    refuse(path, str(error), seen=show(value))
                except RecursionError:
                    refuse(path, "is nested too deeply")
        if not plain and len(self.problems) == before:
            refuse("line", "says nothing")
        if len(self.problems) == before:
            self.lines.append(Line(len(self.lines), "", place, plain))


def first_of(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Returns problems as they are told: all of them, or the first ones and how many more there are."""
    if len(problems) <= MOST_PROBLEMS:
        return tuple(problems)
    more = f"and {len(problems) - MOST_PROBLEMS} problems more"
    return (*problems[:MOST_PROBLEMS], Problem("lines", more))


def plain_value(value: object) -> Plain:
    """Makes JSON's kind of value of what a file or a database holds.

    >>> plain_value(Decimal("0.10")), plain_value(Decimal("3")), plain_value(date(2026, 11, 1))
    (0.1, 3, '2026-11-01')

    Raises:
        ValueError: there is none.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if value == value.to_integral_value() and "." not in str(value) else float(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: plain_value(item) for name, item in value.items()}
    raise ValueError("must be a finite number, text, true, false, a date, a list or a mapping")
