"""The body of a request, compared with what was signed: its hash, or a signature of each chunk.

A body is checked while it is read, since an upload is never held in memory. Who reads it learns at its end whether it
was the one that was signed, and keeps nothing of it before.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from headrace.endpoint.auth.signatures import ALGORITHM, EMPTY_HASH, Signed, scope_of, signing_key, stamp_of
from headrace.endpoint.http.http_message import FramingCheck, RequestBody
from headrace.endpoint.wire.protocols import ServiceError

PAYLOAD = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
PAYLOAD_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"


class ChunkSignatures(FramingCheck):
    """The chain of signatures of one upload.

    Args:
        signed: the signature of the request's head, which is right.
        secret: of its key.
    """

    def __init__(self, signed: Signed, secret: str) -> None:
        self._key = signing_key(signed, secret)
        self._place = (stamp_of(signed), scope_of(signed))
        self._before = signed.signature

    def chunk(self, signature: str, digest: str) -> None:
        """See `FramingCheck`."""
        self._follow(f"{ALGORITHM}-PAYLOAD", signature, EMPTY_HASH, digest)

    def trailers(self, signature: str, trailers: Mapping[str, str]) -> None:
        """See `FramingCheck`."""
        text = "".join(f"{name}:{value}\n" for name, value in sorted(trailers.items()))
        digest = hashlib.sha256(text.encode("latin-1")).hexdigest()
        self._follow(f"{ALGORITHM}-TRAILER", signature, digest)

    def _follow(self, kind: str, signature: str, *digests: str) -> None:
        text = "\n".join((kind, *self._place, self._before, *digests))
        wanted = hmac.new(self._key, text.encode(errors="surrogateescape"), "sha256").hexdigest()
        if not hmac.compare_digest(wanted.encode(), signature.encode(errors="replace")):
            words = "The chunk signature we calculated does not match the signature you provided."
            raise ServiceError("SignatureDoesNotMatch", words, 403)
        self._before = wanted


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
