"""From named cells to lines: what file, query and matrix have in common. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import TypedDict

from headrace.errors import Problem
from headrace.grid.lines.line import ENGINE, IMAGE, OF_LINES, REGION, Line, Plain
from headrace.job.model.field_types import known_regions, text_of
from headrace.job.problems.finding import nearest, show

MAX_LINES = 100_000
"""A grid has no more. AWS Batch takes 10,000 in an array."""

MOST_PROBLEMS = 200
"""So many problems are told at once."""


class _Where(TypedDict):
    line: int
    place: str


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
        at: _Where = {"line": line, "place": "" if line else place}
        plain: dict[str, Plain] = {}
        for path, value in fields.items():
            if path == REGION and (value is None or value not in known_regions()):
                near = nearest(str(value or ""), known_regions())
                hint = f"did you mean {near!r}?" if near else (
                    "such as us-east-1; without the column the grid's placement chooses"
                )  # fmt: skip
                self.refuse(path, "must be a region", **at, seen=show(value) if value else "", hint=hint)
            elif path in (ENGINE, IMAGE) and not (value is None or (isinstance(value, str) and value)):
                self.refuse(path, "must be text", **at, seen=show(value))
            elif value is not None:
                try:
                    plain[path] = plain_value(value)
                except ValueError as error:
                    self.refuse(path, str(error), **at, seen=show(value))
                except RecursionError:
                    self.refuse(path, "is nested too deeply", **at)
        if not plain and len(self.problems) == before:
            self.refuse("line", "says nothing", **at)
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
