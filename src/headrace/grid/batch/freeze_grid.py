"""From a plan to the bundle: every line's job, checked for SageMaker and freed of this machine.

A job names files of the machine that plans it: its code, what lies beside that, wheels. They are copied into the
bundle, each once, and the jobs name them there. What a child could not do is refused here, before anything is sent.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from headrace.engines.sagemaker.sagemaker_job import SageMakerJob, plan_sagemaker_job
from headrace.errors import JobInvalid, Problem, UsageError
from headrace.grid.batch.array_file import array_file
from headrace.grid.batch.freeze_code import FrozenCode
from headrace.grid.batch.frozen_copies import copies_in, freeze_copies
from headrace.grid.batch.grid_bundle import FrozenCopy, FrozenLine, bundle_files
from headrace.grid.controller.line_jobs import LineJobs
from headrace.grid.lines.line import SAGEMAKER, engine_of
from headrace.grid.load_grid import Grid
from headrace.grid.placement.candidate import Candidate
from headrace.grid.plan_grid import GridPlan, PlannedLine
from headrace.runs import RunPaths, runs_dir

MAX_CHILDREN = 10_000
"""Of an array job of AWS Batch."""


class FrozenJobs(NamedTuple):
    """A bundle, and what was planned to make it.

    Attributes:
        files: of the bundle, by name.
        planned: the job of every line as the SageMaker engine would submit it.
        copies: that the jobs read.
    """

    files: dict[str, bytes]
    planned: tuple[SageMakerJob, ...]
    copies: tuple[FrozenCopy, ...] = ()


def freeze_grid(grid: Grid, plan: GridPlan) -> FrozenJobs:
    """Freezes a grid.

    Raises:
        JobInvalid: with all lines that SageMaker would not take.
        UsageError: a line that runs nowhere or elsewhere, or too many lines.
        OSError, StorageError: code that cannot be read; data that must be copied, and cannot be listed.
    """
    _check_lines(grid, plan)
    copies = freeze_copies(grid, plan)
    frozen: list[FrozenLine] = []
    jobs: list[dict[str, Any]] = []
    planned: list[SageMakerJob] = []
    problems: list[Problem] = []
    code, made = FrozenCode(grid.template.base), LineJobs(grid)
    for each in plan.lines:
        chosen = _chosen(each)
        try:
            job = made.job(each.line.key, each.job_name, chosen.region, SAGEMAKER, copies_in(copies, chosen.region))
            planned.append(plan_sagemaker_job(job, RunPaths(runs_dir() / job.job_name)))
        except JobInvalid as error:
            problems += (replace(problem, file=each.line.place, line=0) for problem in error.problems)
            continue
        jobs.append(code.freed(job.model_dump(mode="json", exclude_unset=True)))
        frozen.append(_frozen(each, chosen))
    if problems:
        raise JobInvalid(tuple(problems))
    array = array_file(grid.lines, [line.region for line in frozen])
    files = bundle_files(plan.name, plan.digest, frozen, jobs, array, code.files, copies)
    return FrozenJobs(files, tuple(planned), copies)


def _check_lines(grid: Grid, plan: GridPlan) -> None:
    nowhere = [each.line.place for each in plan.lines if each.placed.chosen is None or not each.placed.chosen.region]
    if nowhere:
        hint = "let the lines or `placement.regions` name one; `headrace grid plan --why` shows what is against each"
        raise UsageError(f"{len(nowhere)} lines have no region where they can run, {nowhere[0]} first", hint=hint)
    if len(plan.lines) > MAX_CHILDREN:
        hint = "divide the grid into several files"
        message = f"an array job of AWS Batch has at most {MAX_CHILDREN} children, the grid {len(plan.lines)} lines"
        raise UsageError(message, hint=hint)
    # A grid that names no engine runs on this machine, which no child has.
    otherwise = grid.file.engine if "engine" in grid.file.model_fields_set else SAGEMAKER
    for each in plan.lines:
        engine = engine_of(each.line, otherwise)
        if engine != SAGEMAKER:
            hint = "leave `engine` out, or run the grid from this machine"
            message = f"{each.line.place}: engine {engine}: a child of AWS Batch reaches sagemaker only"
            raise UsageError(message, hint=hint)


def _chosen(planned: PlannedLine) -> Candidate:
    assert planned.placed.chosen is not None
    return planned.placed.chosen


def _frozen(each: PlannedLine, chosen: Candidate) -> FrozenLine:
    return FrozenLine(
        index=each.line.index,
        place=Path(each.line.place).name,  # the same for whoever exports it from elsewhere
        key=each.line.key,
        job_name=each.job_name,
        engine=SAGEMAKER,
        region=chosen.region,
        decided_by=each.placed.decided_by,
    )
