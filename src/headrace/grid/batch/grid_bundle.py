"""A grid as the children of a batch system read it: what it runs is frozen, so they need no database and no plan.

    grid.json           the grid, its lines and their placement
    array.txt           or array.jsonl: the array file
    jobs.jsonl.gz       the job of every line, one a line
    code-DIGEST.tar.gz  what jobs name as `source_dir`
    wheels-DIGEST/      what jobs name as `engines.sagemaker.wheels`

The same grid, placement and code give the same bytes. What was changed afterwards is refused: `grid.json` has the
digests of the others.

A job names files of the machine that plans it: its code, what lies beside that, wheels. They are copied into the
bundle, each once, and the jobs name them there. What a child could not do is refused before anything is sent.

Copies that lines read are listed when the grid is exported, and made by a job of their own before the array begins.
What is copied is what the listing showed then: its digest is in the place that the frozen jobs read. Where the data
have changed since, nothing is copied; the grid is exported again. A child looks for the marker of a whole copy first.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace.engines.planning.pack_files import files_below, packed
from headrace.engines.planning.prepare_run import bring_job_code
from headrace.engines.sagemaker.sagemaker_job import SageMakerJob, plan_sagemaker_job
from headrace.errors import JobInvalid, Problem, UsageError
from headrace.grid.controller.line_jobs import CODE, LineJobs
from headrace.grid.copied_object import OBJECTS, CopyFailed, CopyFailure, read_marker
from headrace.grid.copy_action import CopyResult, access_in, plan_copy, plan_grid_copy
from headrace.grid.grid_record import LineRecord
from headrace.grid.line import REGION, SAGEMAKER, Line, engine_of
from headrace.grid.load_grid import Grid
from headrace.grid.plan_grid import GridPlan
from headrace.instance.s3 import S3, S3Access
from headrace.instance.storage import split
from headrace.job import Job
from headrace.job.model.path_types import is_remote
from headrace.job.model.sagemaker_options import AUTO_WHEELS, NO_WHEELS
from headrace.runs import RunPaths, runs_dir

GRID, JOBS = "grid.json", "jobs.jsonl.gz"
VERSION = 1
_TAG_DIGITS = 12


class FrozenLine(msgspec.Struct, frozen=True):
    """A line, and where it runs.

    Attributes:
        index: position in the grid and in the array job.
        place: where the line was written, as messages name it.
        key: of its content.
        job_name: of its job.
        engine: that runs it.
        region: where.
        decided_by: the wish that decided for the region; empty when nothing had to be decided.
    """

    index: int
    place: str
    key: str
    job_name: str
    engine: str
    region: str
    decided_by: str = ""


class FrozenCopy(msgspec.Struct, frozen=True):
    """Data that lines read in a region where they are not.

    Attributes:
        place: ``s3://`` place of the data.
        region: of the copy.
        copy_to: ``s3://`` place below which copies lie there.
        target: ``s3://`` place that jobs read; it has the digest of what was listed.
        bytes: of all objects.
        price: USD a GB of transfer.
        owner: who pays for it.
        source_access, target_access: profile, region and address by which the buckets of the two regions are reached.
    """

    place: str
    region: str
    copy_to: str
    target: str
    bytes: int
    price: float
    owner: str
    source_access: S3Access
    target_access: S3Access


class FrozenGrid(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `grid.json` holds.

    Attributes:
        version: of this form.
        name: of the grid.
        digest: of its lines.
        array: name of the array file.
        files: SHA-256 of the content of every other file of the bundle, by name.
        lines: in their order.
        copies: that must be whole before lines that read them begin.
    """

    version: int
    name: str
    digest: str
    array: str
    files: dict[str, str]
    lines: tuple[FrozenLine, ...]
    copies: tuple[FrozenCopy, ...] = ()


_decoder = msgspec.json.Decoder(FrozenGrid)


def bundle_files(
    name: str,
    digest: str,
    lines: Sequence[FrozenLine],
    jobs: Iterable[Mapping[str, object]],
    array: tuple[str, bytes],
    code: Mapping[str, bytes],
    copies: Sequence[FrozenCopy] = (),
) -> dict[str, bytes]:
    """Returns the files of a bundle, by name.

    Args:
        name: of the grid.
        digest: of its lines.
        lines: in their order.
        jobs: keys of the job of every line, in the same order.
        array: name and content of the array file.
        code: what the jobs name, by name.
        copies: that the jobs read.
    """
    listed = "".join(json.dumps(job, sort_keys=True, ensure_ascii=False) + "\n" for job in jobs)
    files = {array[0]: array[1], JOBS: gzip.compress(listed.encode(), mtime=0), **code}
    digests = {each: content_digest(each, found) for each, found in files.items()}
    grid = FrozenGrid(VERSION, name, digest, array[0], digests, (*lines,), (*copies,))
    return {GRID: msgspec.json.format(msgspec.json.encode(grid), indent=1) + b"\n", **files}


def read_frozen_grid(content: bytes, source: str) -> FrozenGrid:
    """Reads `grid.json`.

    Args:
        content: of the file.
        source: what it is called in messages.

    Raises:
        UsageError: it is none, or of another version.
    """
    try:
        found = _decoder.decode(content)
    except msgspec.DecodeError as error:
        raise UsageError(f"{source} is no grid that was exported: {error}", hint="export the grid again") from None
    if found.version != VERSION:
        hint = f"this headrace reads version {VERSION}: export the grid again, and build its image again"
        raise UsageError(f"{source} has version {found.version}", hint=hint)
    return found


def check_content(grid: FrozenGrid, name: str, content: bytes, source: str) -> bytes:
    """Returns the content of a file of a bundle, if it is the one that was exported.

    Raises:
        UsageError: it is another one.
    """
    if content_digest(name, content) != grid.files.get(name):
        hint = "lines are changed in the grid's own file; then export or submit it again"
        raise UsageError(f"{source} was changed after it was exported", hint=hint)
    return content


def read_job(content: bytes, index: int) -> dict[str, Any]:
    """Returns the keys of a line's job.

    Args:
        content: of `JOBS`.
        index: of the line.
    """
    job: dict[str, Any] = json.loads(gzip.decompress(content).split(b"\n")[index])
    return job


def line_of(grid: FrozenGrid, index: int) -> FrozenLine:
    """Returns a line of a grid.

    Raises:
        UsageError: there is none of that index, or it names no region.
    """
    if not 0 <= index < len(grid.lines):
        hint = f"the array job must have the size {len(grid.lines)}; submit-job.json has it"
        raise UsageError(f"no line has the index {index}: {grid.array} has {len(grid.lines)} lines", hint=hint)
    line = grid.lines[index]
    if not line.region:
        raise UsageError(f"{grid.array}:{index + 1}: the line names no region", hint="export the grid again")
    return line


def bundle_tag(files: Mapping[str, bytes]) -> str:
    """Returns what tells a bundle from others: 12 hexadecimal digits of `GRID`, which has the digests of the others."""
    return hashlib.sha256(files[GRID]).hexdigest()[:_TAG_DIGITS]


def content_digest(name: str, content: bytes) -> str:
    """Returns the SHA-256 of a file; of a packed one, of what is in it, which is the same whatever packed it."""
    return hashlib.sha256(gzip.decompress(content) if name.endswith(".gz") else content).hexdigest()


def freeze_copies(grid: Grid, plan: GridPlan) -> tuple[FrozenCopy, ...]:
    """Lists the data of all copies that a plan needs, and says where each copy lies. Nothing is written.

    Raises:
        CopyFailed: data that cannot be listed or copied; no place for copies.
    """
    rules, job, in_regions = grid.file.placement, grid.template.data, grid.file.in_regions
    found: list[FrozenCopy] = []
    for planned in plan.copies:
        source, region = planned.source, planned.region
        owner = f"{plan.name} on AWS Batch"
        with plan_grid_copy(planned.place, source, region, rules, job, in_regions, owner) as action:
            copy = FrozenCopy(
                place=action.place,
                region=region,
                copy_to=rules.copy_to[region],
                target=action.target,
                bytes=action.bytes,
                price=rules.transfer.price,
                owner=owner,
                source_access=access_in(source, job, in_regions),
                target_access=access_in(region, job, in_regions),
            )
        found.append(copy)
    return tuple(found)


def copies_in(copies: Sequence[FrozenCopy], region: str) -> dict[str, str]:
    """Returns the place of each copy in a region, by the place of the data."""
    return {copy.place: copy.target for copy in copies if copy.region == region}


def make_copy(copy: FrozenCopy, stop: threading.Event) -> CopyResult:
    """Makes a copy, or finds it whole. What an earlier call has copied is not copied again.

    Args:
        copy: of a bundle.
        stop: ends it; what is there stays.

    Raises:
        CopyFailed: it is not whole.
    """
    source, target = copy.source_access, copy.target_access
    with plan_copy(
        copy.place, copy.copy_to, source=source, target=target, price=copy.price, owner=copy.owner
    ) as action:
        if action.target != copy.target:
            hint = "submit the grid again: its lines read a copy of what is there now"
            message = f"{copy.place} has changed since the grid was exported"
            raise CopyFailed(CopyFailure.SOURCE_CHANGED, message, hint)
        return action.run(stop)


def copies_read_by(grid: FrozenGrid, line: FrozenLine, job: Mapping[str, object]) -> Iterator[FrozenCopy]:
    """Yields the copies that a line reads.

    Args:
        grid: of the bundle.
        line: of the grid.
        job: keys of its job.
    """
    channels = job.get("inputs")
    read = {each.get("s3_data") for each in channels.values()} if isinstance(channels, Mapping) else set()
    yield from (copy for copy in grid.copies if copy.region == line.region and copy.target in read)


def check_copied(copies: Iterable[FrozenCopy]) -> None:
    """Checks that copies are whole.

    Raises:
        UsageError: one is not.
        StorageError: its marker cannot be read now.
    """
    for copy in copies:
        bucket, key = split(copy.target)
        with closing(S3(access=copy.target_access)) as s3:
            marker = read_marker(s3, bucket, key.rpartition(OBJECTS)[0])
        if marker is None:
            hint = "`headrace grid copy` makes the copies of a bundle; on AWS Batch the job of submit-copies.json does"
            raise UsageError(f"the copy of {copy.place} in {copy.region} is not whole", hint=hint)


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
        self._packed: dict[bytes, tuple[dict[str, Any], list[dict[str, Any]], str]] = {}

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
        own, of_groups, wheels = self._packed[known]
        free = {key: value for key, value in data.items() if key != "dependencies"} | own
        if groups:
            free["instance_groups"] = [{**group, **more} for group, more in zip(groups, of_groups, strict=True)]
        if wheels:
            free["engines"] = {**data["engines"], "sagemaker": {**options, "wheels": wheels}}
        return free

    def _pack(self, job: Job) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
        """Returns what a job names in the bundle in place of files of this machine: its keys, those of each of its
        groups, and the folder of its wheels; empty for none."""
        folder = job.sagemaker.wheels
        wheels = "" if folder in (AUTO_WHEELS, NO_WHEELS) else self._pack_wheels(self._base / folder)
        if is_remote(job.source_dir) or not (job.source_dir or job.scripts or job.dependencies):
            return {}, [{} for _ in job.instance_groups], wheels
        job.check_files()
        with tempfile.TemporaryDirectory(prefix="headrace-code-") as copied:
            paths = RunPaths(Path(copied))
            bring_job_code(job, paths, runs_dir())
            content = packed(files_below(paths.code, sorted(each.name for each in paths.code.iterdir())))
        name = f"code-{content_digest('.gz', content)[:_DIGITS]}.tar.gz"
        self.files[name] = content
        scripts = (job.entry_point, *(group.entry_point for group in job.instance_groups))
        own, *groups = ({"entry_point": job.in_code(script)} if script else {} for script in scripts)
        return {"source_dir": name, **own}, groups, wheels

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
