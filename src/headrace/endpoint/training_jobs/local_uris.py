"""Addresses of the endpoint's own buckets: whether something is there, and as which path of this machine.

What is there is linked, and nothing is copied.

A prefix of S3 is no folder: ``s3://b/data`` means ``data/x`` and ``data2`` too. Where a path does not mean the same,
the address stays, and the data come through the endpoint's S3 like those of any other bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.job.sagemaker.field_map import CHANNELS, get

FindPath = Callable[[str, str], "Path | None"]
"""Returns the path of a key in a bucket, whether something is there or not; None for a bucket that is not local, or a
key that has no path of its own."""

FindKey = Callable[[str, str], "str | None"]
"""Returns the first key of a bucket that begins with a prefix; None when there is none, or no such bucket."""

_WRITTEN = ("output_path", "checkpoint_s3_uri")
_PLACES = (("OutputDataConfig", "S3OutputPath"), ("CheckpointConfig", "S3Uri"))


def missing_places(request: Mapping[str, object], region: str, find: FindPath, find_key: FindKey) -> list[str]:
    """Returns what a request names in S3 and is not there, in the service's words: inputs, and buckets to write into.

    Code is not looked for: it is the container that reads it, on the service too.

    Args:
        request: a request that was checked.
        region: of the endpoint.
        find: the endpoint's buckets.
        find_key: their objects.
    """
    role, sentences = str(request.get("RoleArn", "")), []
    channels = request.get(CHANNELS)
    for channel in channels if isinstance(channels, list) else []:
        source = get(channel, ("DataSource", "S3DataSource"))
        uri = str(get(source, ("S3Uri",)) or "")
        bucket, key = _split(uri)
        first = find_key(bucket, key) if bucket else ""
        is_prefix = get(source, ("S3DataType",)) == "S3Prefix"
        if first is None or (bucket and not is_prefix and first != key):  # a manifest is one object
            there = f"that the bucket exists in the selected region ({region}), that objects exist under that S3 prefix"
            rights = f'that the role "{role}" has "s3:ListBucket" permissions on bucket "{bucket}"'
            told = f'No S3 objects found under S3 URL "{uri}" given in input data source.'
            sentences.append(f"{told} Please ensure {there}, and {rights}.")
    for place in _PLACES:
        uri = str(get(dict(request), place) or "")
        bucket, _ = _split(uri)
        if bucket and find(bucket, "") is None:
            told = f'The bucket of the S3 URL "{uri}" given in {".".join(place)} does not exist.'
            sentences.append(f"{told} Please ensure that the bucket exists in the selected region ({region}).")
    return sentences


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
    path = path_of(code, find)
    if path is not None and path.is_file():
        found["source_dir"] = str(path)
    channels = found.get("inputs")
    if isinstance(channels, Mapping):
        found["inputs"] = {name: _channel(channel, find) for name, channel in channels.items()}
    return found


def _written(uri: object, find: FindPath) -> object:
    path = path_of(uri, find)
    return uri if path is None else str(path)


def _channel(channel: object, find: FindPath) -> object:
    if not isinstance(channel, Mapping) or channel.get("s3_data_type", "S3Prefix") != "S3Prefix":
        return channel
    uri = str(channel.get("s3_data", ""))
    path = path_of(uri, find)
    if path is None or not path.is_dir() or (not uri.endswith("/") and _has_siblings(path)):
        return channel
    return {**channel, "s3_data": str(path)}


def _has_siblings(path: Path) -> bool:
    """Tells whether the prefix that a folder's name is means something else too."""
    return any(each.name.startswith(path.name) for each in path.parent.iterdir() if each != path)


def path_of(uri: object, find: FindPath) -> Path | None:
    """Returns the path of an address, whether something is there or not; None for what has none."""
    bucket, key = _split(uri)
    return find(bucket, key) if bucket else None


def _split(uri: object) -> tuple[str, str]:
    """Returns bucket and key of an address; empty texts for what is none."""
    if not isinstance(uri, str) or not uri.startswith("s3://"):
        return "", ""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key
