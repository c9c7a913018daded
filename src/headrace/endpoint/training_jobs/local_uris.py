"""Addresses of the endpoint's own buckets, as paths of this machine: what is there is linked, and nothing is copied.

A prefix of S3 is no folder: ``s3://b/data`` means ``data/x`` and ``data2`` too. Where a path does not mean the same,
the address stays, and the data come through the endpoint's S3 like those of any other bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

FindPath = Callable[[str, str], "Path | None"]
"""Returns the path of a key in a bucket, whether something is there or not; None for a bucket that is not local, or a
key that has no path of its own."""

_WRITTEN = ("output_path", "checkpoint_s3_uri")


def with_local_paths(data: Mapping[str, object], find: FindPath) -> dict[str, object]:
    """Returns a job's data with paths in place of the addresses of local buckets.

    Args:
        data: keys of a job file, read from a request.
        find: the endpoint's buckets.
    """
    found = dict(data)
    for key in _WRITTEN:
        if key in found:
            found[key] = _written(found[key], find)
    code = found.get("source_dir")
    path = _path(code, find)
    if path is not None and path.is_file():
        found["source_dir"] = str(path)
    channels = found.get("inputs")
    if isinstance(channels, Mapping):
        found["inputs"] = {name: _channel(channel, find) for name, channel in channels.items()}
    return found


def _written(uri: object, find: FindPath) -> object:
    path = _path(uri, find)
    return uri if path is None else str(path)


def _channel(channel: object, find: FindPath) -> object:
    if not isinstance(channel, Mapping) or channel.get("s3_data_type", "S3Prefix") != "S3Prefix":
        return channel
    uri = str(channel.get("s3_data", ""))
    path = _path(uri, find)
    if path is None or not path.is_dir() or (not uri.endswith("/") and _has_siblings(path)):
        return channel
    return {**channel, "s3_data": str(path)}


def _has_siblings(path: Path) -> bool:
    """Tells whether the prefix that a folder's name is means something else too."""
    return any(each.name.startswith(path.name) for each in path.parent.iterdir() if each != path)


def _path(uri: object, find: FindPath) -> Path | None:
    if not isinstance(uri, str) or not uri.startswith("s3://"):
        return None
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return find(bucket, key)
