"""Reads a grid: its file, its job and all its lines, checked. A line's job is the grid's job with its fields."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from headrace.errors import JobInvalid, Problem, UsageError
from headrace.grid.grid_file import GridFile, nearly_named
from headrace.grid.line import ENGINE, IMAGE, OF_LINES, Line, digest_of, first_of
from headrace.grid.read_lines import read_lines
from headrace.job import job_document
from headrace.job.find_engine import engine_names
from headrace.job.job import Job, find_problems, load_job
from headrace.job.job_document import Overridden, apply_values, parse_place
from headrace.job.model.fields import JobFields
from headrace.job.problems.finding import Finding, JobSource, examine, show, suggestion
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
        yield replace(source.problem(finding), file=line.place, line=0)


@functools.lru_cache(maxsize=1024)
def place_of(name: str) -> FieldPath:
    """Returns the place in a job that a field names; one that cannot be read is a key of its own, which no job has."""
    return parse_place(name) or (name,)


def _given(made: Overridden) -> dict[str, object]:
    return {key: value for key, value in made.data.items() if value is not None}


Written = TypeVar("Written", bound=BaseModel)


@dataclass(frozen=True)
class Grid:
    """A grid whose lines were read.

    Attributes:
        file: what the user wrote.
        template: the job of which the lines' jobs are made.
        lines: in their order.
        jobs: keys of the job of every line, in the same order.
    """

    file: GridFile
    template: Template
    lines: tuple[Line, ...]
    jobs: tuple[Mapping[str, Any], ...]

    @property
    def digest(self) -> str:
        """What tells these lines from others."""
        return digest_of(self.lines)


def load_grid(path: str | os.PathLike[str]) -> Grid:
    """Reads a grid's file, its job and its lines.

    Raises:
        JobInvalid: with all problems of the grid's file; or else of its job; or else of all lines.
        UsageError: a file or database that is not there.
        StorageError: what cannot be read.
    """
    file = read_grid_file(Path(path))
    base = Path(path).absolute().parent
    job = load_job(base / file.job)
    # Without defaults: what nobody has written is not written into a request either.
    template = Template(job.model_dump(mode="json", exclude_unset=True), job.base_path)
    lines = read_lines(
        file.lines,
        grid_file=os.fspath(path),
        base=base,
        known=JobFields.model_fields,
        channels=tuple(job.inputs),
        variables=os.environ,
    )
    unknown = _unknown_engines(lines)
    if unknown:
        raise JobInvalid(unknown)
    grid = Grid(file, template, lines, template.made(lines))
    _check_objective(grid, os.fspath(path))
    return grid


def _check_objective(grid: Grid, name: str) -> None:
    """Refuses an objective that is a metric definition of a line, misspelt; a program may log any other one itself."""
    if grid.file.objective is None:
        return
    metric = grid.file.objective.metric
    names = {str(each.get("name", "")) for data in grid.jobs for each in data.get("metric_definitions") or ()}
    if metric not in names and (near := nearly_named(metric, names)):
        message = "must be a metric of the job: its metric_definitions name it, or its program logs it"
        hint = f"did you mean {near!r}?"
        raise JobInvalid((Problem("objective.metric", message, show(metric), name, hint=hint),))


def _unknown_engines(lines: tuple[Line, ...]) -> tuple[Problem, ...]:
    there = engine_names()
    named = ((line, str(line.fields[ENGINE])) for line in lines if ENGINE in line.fields)
    return tuple(
        Problem(ENGINE, "must be an engine that is installed", show(name), line.place, hint=suggestion(name, there))
        for line, name in named
        if name not in there
    )


def read_grid_file(path: Path) -> GridFile:
    """Reads a grid's file alone. Raises as `read_file`."""
    if not path.is_file():
        raise UsageError(f"{path} is no file", hint="give the path of a grid's file, e.g. array.yaml")
    return read_file(path, GridFile, "grid file")


def read_file(path: Path, model: type[Written], what: str) -> Written:
    """Reads a YAML file.

    Args:
        path: the file.
        model: its content.
        what: it is, in messages.

    Raises:
        JobInvalid: with all its problems.
    """
    name = os.fspath(path)
    try:
        text = path.read_bytes()[: job_document.MAX_BYTES + 1].decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise JobInvalid((Problem(what, f"cannot be read: {error}", file=name),)) from None
    document = job_document.read(text)
    findings = document.findings or examine(model, document.data)
    if findings:
        raise JobInvalid(JobSource(name, document.lines).problems(findings))
    return model.model_validate(document.data)
