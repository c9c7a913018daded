"""The marker of a copy: an object beside the copied ones, written when all of them were verified.

Without it a copy is not whole, whatever lies there. It holds a digest of the listing of the copy, so that one of
which an object was changed or removed later is not whole either.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from headrace.errors import ObjectMissing
from headrace.instance.s3 import S3

MARKER = "headrace-copy.json"
OBJECTS = "objects/"
_VERSION = 1


class CopyMarker(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a whole copy.

    Attributes:
        place: ``s3://`` place of the data.
        source_region: where they are.
        objects: how many.
        bytes: of all of them.
        source_digest: of the listing that was copied.
        copy_digest: of the listing of the copy.
        compared: how many objects by what, see `headrace.grid.copies.copied_object.Compared`.
        owner: who made the copy, and pays for it.
        finished: seconds since the epoch.
        version: of this form.
    """

    place: str
    source_region: str
    objects: Annotated[int, msgspec.Meta(ge=1)]
    bytes: int
    source_digest: str
    copy_digest: str
    compared: dict[str, int]
    owner: str
    finished: float
    version: int = _VERSION


_decoder = msgspec.json.Decoder(CopyMarker)


def read_marker(s3: S3, bucket: str, root: str) -> CopyMarker | None:
    """Returns the marker below a prefix; None when there is none, or what is there is none of this version.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        found = _decoder.decode(s3.get(bucket, root + MARKER))
    except (ObjectMissing, msgspec.DecodeError):
        return None
    return found if found.version == _VERSION else None


def write_marker(s3: S3, bucket: str, root: str, marker: CopyMarker) -> None:
    """Writes the marker. Raises StorageError."""
    s3.put(msgspec.json.format(msgspec.json.encode(marker)), bucket, root + MARKER)
