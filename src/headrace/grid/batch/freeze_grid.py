"""From a plan to the bundle: every line's job, checked for SageMaker and freed of this machine.

A job names files of the machine that plans it: its code, what lies beside that, wheels. They are copied into the
bundle, each once, and the jobs name them there. What a child could not do is refused here, before anything is sent.
"""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace.engines.planning.pack_files import files_below, packed
from headrace.engines.planning.prepare_run import bring_job_code
from headrace.engines.sagemaker.sagemaker_job import SageMakerJob, plan_sagemaker_job
from headrace.errors import JobInvalid, Problem, UsageError
from headrace.grid.batch.frozen_copies import copies_in, freeze_copies
from headrace.grid.batch.grid_bundle import FrozenCopy, FrozenLine, bundle_files, content_digest
from headrace.grid.controller.line_jobs import CODE, LineJobs
from headrace.grid.journal.grid_record import LineRecord
from headrace.grid.lines.line import REGION, SAGEMAKER, Line, engine_of
from headrace.grid.load_grid import Grid
from headrace.grid.plan_grid import GridPlan
from headrace.job import Job
from headrace.job.model.path_types import is_remote
from headrace.job.model.sagemaker_options import AUTO_WHEELS, NO_WHEELS
from headrace.runs import RunPaths, runs_dir

_CSV, _JSON = "array.txt", "array.jsonl"


def array_file(lines: Sequence[Line], regions: Sequence[str]) -> tuple[str, bytes]:
    """Returns the name and the content of the array file.

    Args:
        lines: of the grid.
        regions: where each runs.
    """
    placed = [{**line.fields, REGION: region} for line, region in zip(lines, regions, strict=True)]
    column = _only_place(placed)
    if column:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows((each[REGION], each[column]) for each in placed)
        return _CSV, out.getvalue().encode()
    return _JSON, "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in placed).encode()


def _only_place(placed: Sequence[Mapping[str, object]]) -> str:
    """Returns the field of the one channel that all lines name beside their region; empty for another form."""
    named = {field for fields in placed for field in fields if field != REGION}
    column = next(iter(named)) if len(named) == 1 else ""
    if not (column.startswith("inputs.") and column.endswith(".path")):
        return ""
    values = [fields.get(column) for fields in placed]
    return column if all(isinstance(value, str) and value.startswith("s3://") for value in values) else ""


_DIGITS = 12


@dataclass(frozen=True)
class _Packed:
    """What a job names in the bundle in place of files of this machine.

    Attributes:
        own: keys of the job.
        groups: keys of each group.
        wheels: folder of its wheels; empty for none.
    """

    own: Mapping[str, Any]
    groups: tuple[Mapping[str, Any], ...]
    wheels: str


class FrozenCode:
    """See the module.

    Args:
        base: what relative paths of the jobs are relative to.

    Attributes:
        files: of the bundle, by name.
    """

    def __init__(self, base: Path) -> None:
        self.files: dict[str, bytes] = {}
        self._base = base
        self._packed: dict[bytes, _Packed] = {}

    def freed(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keys of a job, in which its files are those of the bundle.

        Args:
            data: keys of the job, which has options of SageMaker.

        Raises:
            JobInvalid, UsageError, StorageError, OSError: a file that is not there or cannot be used.
        """
        groups = data.get("instance_groups") or ()
        options = data["engines"]["sagemaker"]
        named = [[each.get(name) for name in CODE] for each in (data, *groups)]
        known = msgspec.json.encode([named, options.get("wheels")])
        if known not in self._packed:
            self._packed[known] = self._pack(Job(base_path=self._base, **data))
        found = self._packed[known]
        free: dict[str, Any] = {key: value for key, value in data.items() if key != "dependencies"}
        free.update(found.own)
        if groups:
            free["instance_groups"] = [{**group, **more} for group, more in zip(groups, found.groups, strict=True)]
        if found.wheels:
            free["engines"] = {**data["engines"], "sagemaker": {**options, "wheels": found.wheels}}
        return free

    def _pack(self, job: Job) -> _Packed:
        folder = job.sagemaker.wheels
        wheels = "" if folder in (AUTO_WHEELS, NO_WHEELS) else self._pack_wheels(self._base / folder)
        if is_remote(job.source_dir) or not (job.source_dir or job.scripts or job.dependencies):
            return _Packed({}, tuple({} for _ in job.instance_groups), wheels)
        job.check_files()
        with tempfile.TemporaryDirectory(prefix="headrace-code-") as copied:
            paths = RunPaths(Path(copied))
            bring_job_code(job, paths, runs_dir())
            content = packed(files_below(paths.code, sorted(each.name for each in paths.code.iterdir())))
        name = f"code-{content_digest('.gz', content)[:_DIGITS]}.tar.gz"
        self.files[name] = content
        own = {"source_dir": name, **({"entry_point": job.in_code(job.entry_point)} if job.entry_point else {})}
        groups = (group.entry_point for group in job.instance_groups)
        return _Packed(own, tuple({"entry_point": job.in_code(each)} if each else {} for each in groups), wheels)

    def _pack_wheels(self, folder: Path) -> str:
        found = {wheel.name: wheel.read_bytes() for wheel in sorted(folder.glob("*.whl"))}
        if not found:
            hint = "fill it with `pip download`; see the page sagemaker-runs of the docs"
            raise UsageError(f"engines.sagemaker.wheels: {folder} has no wheels", hint=hint)
        listed = "".join(f"{name} {content_digest(name, content)}\n" for name, content in found.items())
        place = f"wheels-{content_digest('', listed.encode())[:_DIGITS]}"
        self.files.update({f"{place}/{name}": content for name, content in found.items()})
        return place


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
    for each, placed in zip(plan.lines, plan.placed, strict=True):
        try:
            job = made.job(each.key, each.job_name, each.region, SAGEMAKER, copies_in(copies, each.region))
            planned.append(plan_sagemaker_job(job, RunPaths(runs_dir() / job.job_name)))
        except JobInvalid as error:
            problems += (replace(problem, file=each.place, line=0) for problem in error.problems)
            continue
        jobs.append(code.freed(job.model_dump(mode="json", exclude_unset=True)))
        frozen.append(_frozen(each, placed.decided_by))
    if problems:
        raise JobInvalid(tuple(problems))
    array = array_file(grid.lines, [line.region for line in frozen])
    files = bundle_files(plan.name, plan.digest, frozen, jobs, array, code.files, copies)
    return FrozenJobs(files, tuple(planned), copies)


def _check_lines(grid: Grid, plan: GridPlan) -> None:
    nowhere = [line.place for line in plan.lines if not line.region]
    if nowhere:
        hint = "let the lines or `placement.regions` name one; `headrace grid plan --why` shows what is against each"
        raise UsageError(f"{len(nowhere)} lines have no region where they can run, {nowhere[0]} first", hint=hint)
    if len(plan.lines) > MAX_CHILDREN:
        hint = "divide the grid into several files"
        message = f"an array job of AWS Batch has at most {MAX_CHILDREN} children, the grid {len(plan.lines)} lines"
        raise UsageError(message, hint=hint)
    # A grid that names no engine runs on this machine, which no child has.
    otherwise = grid.file.engine if "engine" in grid.file.model_fields_set else SAGEMAKER
    for line in plan.lines:
        engine = engine_of(line, otherwise)
        if engine != SAGEMAKER:
            hint = "leave `engine` out, or run the grid from this machine"
            message = f"{line.place}: engine {engine}: a child of AWS Batch reaches sagemaker only"
            raise UsageError(message, hint=hint)


def _frozen(line: LineRecord, decided_by: str) -> FrozenLine:
    return FrozenLine(
        index=line.index,
        place=Path(line.place).name,  # the same for whoever exports it from elsewhere
        key=line.key,
        job_name=line.job_name,
        engine=SAGEMAKER,
        region=line.region,
        decided_by=decided_by,
    )
