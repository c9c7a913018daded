"""The bucket of this machine: a folder that a notebook reads and writes under `s3://headrace-local/`.

It lies in `$HEADRACE_HOME/buckets` (by default `~/.headrace/buckets`). Only estimators know it: they give the job the
path that a URI stands for. A key is a file, so it cannot be the beginning of another key's folders.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import StorageError, UsageError
from headrace.home import home_dir
from headrace.instance import storage
from headrace.instance.storage import Store
from headrace.job.model.path_types import LOCAL_BUCKET
from headrace.job.sagemaker.translation import with_places
from headrace.private_folders import make_closed

NAME = LOCAL_BUCKET
MANIFESTS = f"{NAME}.manifests"


def buckets_dir() -> Path:
    """Returns the folder that holds the bucket."""
    return home_dir() / "buckets"


def place_of(uri: str) -> str:
    """Returns the path that a URI of the bucket stands for; any other place as it is.

    Raises:
        StorageError: a key that cannot be a path.
        OSError: the folder of the buckets cannot be made, or closed to other users.
    """
    if not storage.is_s3(uri) or uri.split("/")[2] != NAME:
        return uri
    make_closed(buckets_dir())
    folder = buckets_dir() / NAME
    key = uri.removeprefix(f"s3://{NAME}").strip("/")
    return str(storage.inside(folder, key) if key else folder)


def with_local_places(data: Mapping[str, object]) -> dict[str, object]:
    """Returns a job's data with paths of this machine in place of the bucket's URIs.

    Args:
        data: keys of a job file, read from a request.

    Raises:
        StorageError: a key that cannot be a path.
        UsageError: the bucket of this machine has nothing where a channel's data are to be.
    """
    return with_places(data, place_of, _source_of)


def _source_of(channel: Mapping[str, object]) -> dict[str, object]:
    """Returns where a channel's data are: at a path; of one file, in a manifest that names it."""
    uri = str(channel.get("s3_data", ""))
    place = place_of(uri)
    if place == uri:
        return {}
    if channel["s3_data_type"] != "S3Prefix":  # else the file says what the data are
        return {"s3_data": place}
    if not Path(place).exists():
        words = f"the bucket of this machine, {buckets_dir() / NAME}, has nothing there"
        raise UsageError(f"{uri}: {words}", "put the data there first: Session().upload_data(path, key_prefix=...)")
    if not Path(place).is_file():
        return {"s3_data": place}
    manifest = buckets_dir() / MANIFESTS / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"
    with Store() as store:
        store.write(json.dumps([{"prefix": f"{Path(place).parent}/"}, Path(place).name]).encode(), str(manifest))
    return {"s3_data": str(manifest), "s3_data_type": "ManifestFile"}


def upload(path: str, bucket: str, key_prefix: str) -> str:
    """Copies a file, or all files below a folder, into a bucket: this one, or one of S3.

    Returns:
        The URI of the prefix; of one file, that of its key.

    Raises:
        UsageError: there is nothing at the path.
        StorageError: something cannot be read or written.
    """
    source = Path(path)
    if not source.exists():
        raise UsageError(f"upload_data: {source.absolute()} does not exist", "give the path of a file or folder")
    root = source if source.is_dir() else source.parent
    uri = storage.join(f"s3://{bucket}", *filter(None, [key_prefix.strip("/")]))
    try:
        place_of(uri)
    except StorageError as error:
        hint = "give names with / between them, without . and .."
        raise StorageError(f"upload_data: key_prefix {key_prefix!r} leads out of {bucket}", hint) from error
    files = [source] if source.is_file() else sorted(file for file in source.rglob("*") if file.is_file())
    pairs = [(file, place_of(storage.join(uri, file.relative_to(root).as_posix()))) for file in files]
    with Store() as store:
        store.upload_all(pairs)
    return storage.join(uri, source.name) if source.is_file() else uri
