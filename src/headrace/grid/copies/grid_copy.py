"""From a planned copy of a grid to what makes it: where it goes, how the two regions are reached, what it costs.

A job that reads from copies has their places in its channels; all else of it is as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.grid.copies.copy_action import CopyAction, plan_copy
from headrace.grid.copies.copy_failure import CopyFailed, CopyFailure
from headrace.grid.lines.line_job import place_of
from headrace.grid.placement.placement_rules import PlacementRules
from headrace.instance.s3 import S3Access
from headrace.job.job_document import apply_values


def read_from_copies(job: Mapping[str, Any], copies: Mapping[str, str]) -> dict[str, Any]:
    """Returns the keys of a job whose channels read copies.

    >>> read_from_copies({"inputs": {"train": "s3://far/data"}}, {"s3://far/data": "s3://near/data-1/objects/data"})
    {'inputs': {'train': 's3://near/data-1/objects/data'}}

    Args:
        job: keys of a job, as `headrace.grid.load_grid.Grid.jobs` has them.
        copies: place of the copy by place of the data, of whole copies only.
    """
    channels = job.get("inputs")
    if not channels:
        return dict(job)
    return {**job, "inputs": {name: _channel(channel, copies) for name, channel in channels.items()}}


def _channel(channel: Any, copies: Mapping[str, str]) -> Any:
    if isinstance(channel, str):
        return copies.get(channel, channel)
    place = channel.get("s3_data", "")
    return {**channel, "s3_data": copies[place]} if place in copies else channel


def access_in(region: str, job: Mapping[str, Any], fields: Mapping[str, object]) -> S3Access:
    """Returns how the buckets of a region are reached. Pure.

    That is the profile and the address that a job of this region has for the service SageMaker; else as the
    environment says.

    Args:
        region: its name.
        job: keys of the grid's job.
        fields: what is another in this region, as `in_regions` of a grid's file has it.
    """
    data = apply_values(job, ((place_of(name), value) for name, value in fields.items()), region).data
    engines: Any = data.get("engines") or {}
    options = engines.get("sagemaker") or {}
    endpoint = (options.get("endpoint_urls") or {}).get("s3") or options.get("endpoint_url")
    return S3Access(options.get("profile") or "", region, endpoint or "")


def plan_grid_copy(
    place: str,
    source: str,
    region: str,
    rules: PlacementRules,
    job: Mapping[str, Any],
    in_regions: Mapping[str, Mapping[str, object]],
    owner: str,
) -> CopyAction:
    """Lists the data of a copy, and says where it goes. Nothing is written.

    Args:
        place: ``s3://`` place of the data.
        source, region: where they are, and into which region they go.
        rules: of the grid.
        job: keys of the grid's job, `Grid.template.data`.
        in_regions: what is another in a region, by region.
        owner: who pays for it, such as the grid's name and when it was started: an owner that is asked again, after it
            was killed, is told the cost again.

    Raises:
        CopyFailed: the grid has no place for copies in that region; the data cannot be listed or copied.
    """
    if region not in rules.copy_to:
        hint = f"placement: {{copy_to: {{{region}: s3://BUCKET/PREFIX}}}}"
        message = f"{place} must be copied to {region}, and copy_to names no place there"
        raise CopyFailed(CopyFailure.TARGET_MISSING, message, hint)
    return plan_copy(
        place,
        rules.copy_to[region],
        source=access_in(source, job, in_regions.get(source, {})),
        target=access_in(region, job, in_regions.get(region, {})),
        price=rules.transfer.price,
        owner=owner,
    )
