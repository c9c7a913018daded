"""A grid as the children of a batch system read it: what it runs is frozen, so they need no database and no plan.

    grid.json           the grid, its lines and their placement
    array.txt           or array.jsonl: the array file
    jobs.jsonl.gz       the job of every line, one a line
    code-DIGEST.tar.gz  what jobs name as `source_dir`
    wheels-DIGEST/      what jobs name as `engines.sagemaker.wheels`

The same grid, placement and code give the same bytes. What was changed afterwards is refused: `grid.json` has the
digests of the others. Pure.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from headrace.errors import UsageError

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
    source_access: tuple[str, str, str]
    target_access: tuple[str, str, str]


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
