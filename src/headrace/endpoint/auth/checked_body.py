"""The body of a request, compared with the hash that was signed.

A body is checked while it is read, since an upload is never held in memory. Who reads it learns at its end whether it
was the one that was signed, and keeps nothing of it before.
"""

from __future__ import annotations

import hashlib

from headrace.endpoint.http.http_message import RequestBody
from headrace.endpoint.wire.protocols import ServiceError


class HashedBody(RequestBody):
    """A body with a known SHA-256.

    Args:
        inner: as it arrives.
        wanted: the hash, in hex.
    """

    def __init__(self, inner: RequestBody, wanted: str) -> None:
        self._inner = inner
        self._wanted = wanted
        self._hash = hashlib.sha256()

    @property
    def length(self) -> int | None:
        """See `RequestBody`."""
        return self._inner.length

    @property
    def sha256(self) -> bytes:
        """See `RequestBody`."""
        return self._hash.digest()

    def readinto(self, buffer: memoryview) -> int:
        """See `RequestBody`.

        Raises:
            ServiceError: at the end: it is another body than the one that was signed.
        """
        count = self._inner.readinto(buffer)
        if count:
            self._hash.update(buffer[:count])
        elif self._hash.hexdigest() != self._wanted:
            text = "The provided 'x-amz-content-sha256' header does not match what was computed."
            raise ServiceError("XAmzContentSHA256Mismatch", text)
        return count
