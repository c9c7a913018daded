"""From a line to its job: the grid's job with the line's fields in it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import JobInvalid, Problem
from headrace.grid.lines.line import IMAGE, OF_LINES, Line
from headrace.grid.lines.line_table import first_of
from headrace.job.job import Job, find_problems
from headrace.job.job_document import Overridden, apply_values, parse_place
from headrace.job.problems.finding import Finding, JobSource
from headrace.job.problems.finding import Path as FieldPath


@dataclass(frozen=True)
class Template:
    """The job of which the lines' jobs are made.

    Attributes:
        data: keys of a job file and their values.
        base: what its relative paths are relative to.
    """

    data: Mapping[str, object]
    base: Path

    def job_of(self, line: Line, name: str, changed: Callable[[dict[str, object]], dict[str, object]] = dict) -> Job:
        """Returns the job of a line; files are not looked for.

        Args:
            line: one of the grid's.
            name: of the job.
            changed: returns the keys of the job as they are where it runs.

        Raises:
            JobInvalid: with all that is wrong, at the place of the line.
        """
        made = self._with(line)
        data = _given(made) if made.findings else changed(_given(made))
        return Job.from_source({**data, "job_name": name}, JobSource(line.place), self.base, made.findings, look=False)

    def made(self, lines: Sequence[Line]) -> tuple[dict[str, object], ...]:
        """Returns the keys of the job of every line, which are checked.

        Raises:
            JobInvalid: with the problems of all lines, each at its line's place.
        """
        problems: list[Problem] = []
        result: list[dict[str, object]] = []
        for line in lines:
            made = self._with(line)
            data = _given(made)
            problems += _problems(made.findings or find_problems(data), line)
            result.append(data)
        if problems:
            raise JobInvalid(first_of(problems))
        return tuple(result)

    def _with(self, line: Line) -> Overridden:
        values = [(place_of(name), value) for name, value in line.fields.items() if name not in OF_LINES]
        if IMAGE in line.fields:
            values.append((("image_uri",), line.fields[IMAGE]))
        return apply_values(self.data, values, line.place)


def _problems(findings: list[Finding], line: Line) -> Iterator[Problem]:
    source = JobSource()
    for finding in findings:
        problem = source.problem(finding)
        yield Problem(problem.field, problem.message, problem.value, line.place, 0, problem.hint, problem.code)


@functools.lru_cache(maxsize=1024)
def place_of(name: str) -> FieldPath:
    """Returns the place in a job that a field names; one that cannot be read is a key of its own, which no job has."""
    return parse_place(name) or (name,)


def _given(made: Overridden) -> dict[str, object]:
    return {key: value for key, value in made.data.items() if value is not None}
