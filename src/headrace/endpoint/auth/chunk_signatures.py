"""Signatures of the chunks of an upload (STREAMING-AWS4-HMAC-SHA256-PAYLOAD), each of which is made of the one before.

The first follows from the signature of the head. Older clients send this; newer ones sign no body, or all of it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from headrace.endpoint.auth.signatures import ALGORITHM, EMPTY_HASH, Signed, scope_of, signing_key, stamp_of
from headrace.endpoint.http.http_message import FramingCheck
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
