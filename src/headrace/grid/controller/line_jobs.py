"""The jobs of a grid's lines as they are started: with what is another in their region, and reading whole copies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from headrace.engines.planning.prepare_run import digest_of_code
from headrace.errors import JobInvalid, Problem, UsageError
from headrace.grid.copy_action import read_from_copies
from headrace.grid.line import ENGINE, SAGEMAKER
from headrace.grid.load_grid import Grid, Template, place_of
from headrace.grid.plan_grid import with_ending
from headrace.job import Job
from headrace.job.find_engine import engine_names
from headrace.job.job import find_problems
from headrace.job.job_document import apply_values
from headrace.job.problems.finding import JobSource, show, suggestion

CODE = ("source_dir", "entry_point", "dependencies")
"""Keys of a job, and of its groups, that name its code."""


def attempt_name(job_name: str, number: int) -> str:
    """Returns the job name of an attempt: the line's own for the first one.

    >>> attempt_name("campaigns-0123456789ab", 1), attempt_name("campaigns-0123456789ab", 3)
    ('campaigns-0123456789ab', 'campaigns-0123456789ab-a3')
    """
    if number == 1:
        return job_name
    grid, _, key = job_name.rpartition("-")
    return with_ending(grid, f"-{key}-a{number}")


class LineJobs:
    """Makes the jobs of lines.

    Args:
        grid: as it was read.

    Attributes:
        file: what the user wrote.
        template: keys of the grid's job.

    Raises:
        JobInvalid: an engine that is not there, or a field of `in_regions` that cannot be.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.file, self.template = grid.file, grid.template.data
        self._lines = {line.key: line for line in grid.lines}
        self._templates: dict[str, Template] = {}
        self._check_engine()
        for region in grid.file.in_regions:
            self._template(region)

    @property
    def digest(self) -> str:
        """What tells the job of this grid, its code, and what is another in each region, from others."""
        given = [self.template, self.file.engine, self.file.in_regions, self._code()]
        return hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()

    def job(self, key: str, name: str, region: str, engine: str, copies: Mapping[str, str]) -> Job:
        """Returns the job of an attempt. Files are not looked for.

        Args:
            key: of the line.
            name: of the job.
            region: where it runs; empty where there is none.
            engine: that runs it.
            copies: place of each whole copy in this region, by the place of the data.

        Raises:
            JobInvalid: with all that is wrong, at the place of the line.
        """

        def changed(data: dict[str, object]) -> dict[str, object]:
            made: dict[str, Any] = read_from_copies(data, copies)
            if engine == SAGEMAKER and region:
                engines = dict(made.get("engines") or {})
                made["engines"] = {**engines, SAGEMAKER: {**(engines.get(SAGEMAKER) or {}), "region": region}}
            return made

        return self._template(region).job_of(self._lines[key], name, changed)

    def _code(self) -> list[str]:
        """Returns the digests of the code that lines run; of code that cannot be read, why: a start tells of it."""
        jobs: dict[str, Job] = {}
        for data in self._grid.jobs:
            named = [[each.get(name) for name in CODE] for each in (data, *(data.get("instance_groups") or ()))]
            if (key := json.dumps(named)) not in jobs:
                jobs[key] = Job.from_source(
                    {"job_name": "code", **data}, JobSource(), self._grid.template.base, look=False
                )
        result = []
        for job in jobs.values():
            try:
                result.append(digest_of_code(job))
            except (UsageError, OSError) as error:
                result.append(str(error))
        return sorted(result)

    def _template(self, region: str) -> Template:
        if region not in self._templates:
            fields = self.file.in_regions.get(region, {})
            plain = self._grid.template
            made = apply_values(plain.data, ((place_of(name), value) for name, value in fields.items()), region)
            given = {key: value for key, value in made.data.items() if value is not None}
            wrong = (made.findings or find_problems(given)) if fields else []
            if wrong:
                source = JobSource(f"in_regions.{region}")
                raise JobInvalid(tuple(source.problem(finding) for finding in wrong))
            self._templates[region] = Template(made.data, plain.base)
        return self._templates[region]

    def _check_engine(self) -> None:
        there, name = engine_names(), self.file.engine
        if name not in there:  # those of lines are known
            message = "must be an engine that is installed"
            raise JobInvalid((Problem(ENGINE, message, show(name), hint=suggestion(name, there)),))
