"""Copies that lines of a bundle read: listed when it is exported, made by a job of their own before the array begins.

What is copied is what the listing showed then: its digest is in the place that the frozen jobs read. Where the data
have changed since, nothing is copied; the grid is exported again. A child looks for the marker of a whole copy first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from headrace.errors import UsageError
from headrace.grid.batch.grid_bundle import FrozenCopy, FrozenGrid, FrozenLine
from headrace.grid.copies.copied_object import OBJECTS, read_marker
from headrace.grid.copies.copy_action import CopyProgress, CopyResult, plan_copy
from headrace.grid.copies.copy_failure import CopyFailed, CopyFailure
from headrace.grid.copies.grid_copy import access_in, plan_grid_copy
from headrace.grid.load_grid import Grid
from headrace.grid.plan_grid import GridPlan
from headrace.instance.s3 import S3, S3Access
from headrace.instance.storage import split


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
                source_access=access_in(source, job, in_regions.get(source, {})),
                target_access=access_in(region, job, in_regions.get(region, {})),
            )
        found.append(copy)
    return tuple(found)


def copies_in(copies: Sequence[FrozenCopy], region: str) -> dict[str, str]:
    """Returns the place of each copy in a region, by the place of the data."""
    return {copy.place: copy.target for copy in copies if copy.region == region}


def make_copy(copy: FrozenCopy, stop: threading.Event, progress: Callable[[CopyProgress], object]) -> CopyResult:
    """Makes a copy, or finds it whole. What an earlier call has copied is not copied again.

    Args:
        copy: of a bundle.
        stop: ends it; what is there stays.
        progress: told of it.

    Raises:
        CopyFailed: it is not whole.
    """
    source, target = S3Access(*copy.source_access), S3Access(*copy.target_access)
    with plan_copy(
        copy.place, copy.copy_to, source=source, target=target, price=copy.price, owner=copy.owner
    ) as action:
        if action.target != copy.target:
            hint = "submit the grid again: its lines read a copy of what is there now"
            message = f"{copy.place} has changed since the grid was exported"
            raise CopyFailed(CopyFailure.SOURCE_CHANGED, message, hint)
        return action.run(stop, progress)


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
        if not _is_marked(copy):
            hint = "`headrace grid copy` makes the copies of a bundle; on AWS Batch the job of submit-copies.json does"
            raise UsageError(f"the copy of {copy.place} in {copy.region} is not whole", hint=hint)


def _is_marked(copy: FrozenCopy) -> bool:
    bucket, key = split(copy.target)
    s3 = S3(access=S3Access(*copy.target_access))
    try:
        return read_marker(s3, bucket, key.rpartition(OBJECTS)[0]) is not None
    finally:
        s3.close()
