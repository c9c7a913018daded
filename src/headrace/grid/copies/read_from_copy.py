"""The job that reads from copies: its channels' places replaced, all else as it was. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
