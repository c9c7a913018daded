"""Why a copy failed: a type that decides, and words for people."""

from __future__ import annotations

from enum import Enum
from typing import Any

from headrace.aws_errors import AwsFault, fault_of
from headrace.errors import HeadraceError, ObjectChanged, ObjectMissing, StorageError, UsageError


class CopyFailure(Enum):
    """What went wrong."""

    SOURCE_MISSING = "the data are not there"
    SOURCE_CHANGED = "the data changed while they were copied"
    ARCHIVED = "the data are archived and must be restored first"
    TARGET_MISSING = "the place of the copy is not there"
    TARGET_DIFFERS = "the copy is not what was copied"
    WRONG_REGION = "a bucket is in another region than was said"
    OVERLAP = "the place of the copy lies in the data"
    DENIED = "the credentials may not do that"
    CREDENTIALS = "the credentials are wrong, too old or not there"
    THROTTLED = "the service asks for fewer requests"
    NO_ANSWER = "no answer"
    UPLOAD_LOST = "an unfinished upload was removed by somebody else"
    STOPPED = "stopped on request"
    OTHER = "the service refused"


PASSING = frozenset((CopyFailure.THROTTLED, CopyFailure.NO_ANSWER, CopyFailure.UPLOAD_LOST, CopyFailure.STOPPED))
"""What may go well another time though nobody changes anything."""

_FAULTS = {
    AwsFault.DENIED: CopyFailure.DENIED,
    **dict.fromkeys((AwsFault.BAD_KEYS, AwsFault.EXPIRED), CopyFailure.CREDENTIALS),
    **dict.fromkeys((AwsFault.BUSY, AwsFault.INTERNAL), CopyFailure.THROTTLED),
}


class CopyFailed(StorageError):
    """A copy is not whole. What was copied stays, and is not copied again by the next attempt.

    Args:
        failure: what went wrong.
        message: with the place that it is about.
        hint: what to do.
    """

    def __init__(self, failure: CopyFailure, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.failure = failure

    @property
    def passing(self) -> bool:
        """Whether another attempt may go well though nobody changes anything."""
        return self.failure in PASSING


def copy_failed(error: HeadraceError, *, writing: bool) -> CopyFailed:
    """Returns what an error of S3 is to a copy.

    Args:
        error: as `headrace.instance.s3.S3` raises it.
        writing: it was raised by a request to the place of the copy.
    """
    if isinstance(error, CopyFailed):
        return error
    return CopyFailed(_failure(error, writing), error.message, error.hint)


def _failure(error: HeadraceError, writing: bool) -> CopyFailure:
    if isinstance(error, UsageError):
        return CopyFailure.CREDENTIALS  # or the profile is none
    if isinstance(error, ObjectChanged):
        return CopyFailure.SOURCE_CHANGED
    response: dict[str, Any] | None = getattr(error.__cause__, "response", None)
    code = str((response or {}).get("Error", {}).get("Code", ""))
    if code == "NoSuchKey":
        return CopyFailure.SOURCE_CHANGED  # it was listed
    if code == "NoSuchUpload":
        return CopyFailure.UPLOAD_LOST
    if isinstance(error, ObjectMissing):
        return CopyFailure.TARGET_MISSING if writing else CopyFailure.SOURCE_MISSING
    if code == "InvalidObjectState":
        return CopyFailure.ARCHIVED
    if response is None:
        return CopyFailure.NO_ANSWER
    return _FAULTS.get(fault_of(code), CopyFailure.OTHER)
