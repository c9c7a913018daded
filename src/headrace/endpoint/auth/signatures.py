"""Signatures of AWS requests: what was signed is rebuilt from the request as it arrived, and signed again.

Signature Version 4, in the Authorization header or in the query (a presigned URL), and version 2 in the query, which
is what boto3 presigns for S3 without a region in the name.

A body is compared with what was signed, its hash or a signature of each chunk, while it is read, since an upload is
never held in memory. Who reads it learns at its end whether it was the one that was signed, and keeps nothing of it
before.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from urllib.parse import quote, unquote_plus

from headrace.endpoint.http.http_message import FramingCheck, Headers, HttpRequest, RequestBody
from headrace.endpoint.wire.models import ServiceError

ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY_HASH = hashlib.sha256(b"").hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"
_STAMP = "%Y%m%dT%H%M%SZ"
_MOST_SECONDS = 7 * 86400
_V2_PARAMETERS = {
    *("acl", "cors", "delete", "lifecycle", "location", "logging", "notification", "partNumber", "policy"),
    *("requestPayment", "tagging", "torrent", "uploadId", "uploads", "versionId", "versioning", "versions", "website"),
    *(f"response-{name}" for name in ("cache-control", "content-disposition", "content-encoding")),
    *(f"response-{name}" for name in ("content-language", "content-type", "expires")),
}


class Malformed(ValueError):
    """A signature that is there and cannot be read; the text says why."""


@dataclass(frozen=True)
class Signed:
    """What a request says about its signature.

    Attributes:
        key_id: access key id.
        signature: as sent.
        moment: when it was signed, seconds since the epoch; 0 for version 2, which does not say.
        expires: until when it counts, seconds since the epoch; None: as the clock's skew allows.
        date, region, service: the credential scope; empty for version 2.
        names: of the headers that are signed, lower case.
        version: 4 or 2.
        in_query: a presigned URL.
    """

    key_id: str
    signature: str
    moment: float
    expires: float | None
    date: str = ""
    region: str = ""
    service: str = ""
    names: tuple[str, ...] = ()
    version: int = 4
    in_query: bool = False


def query_pairs(query: str) -> list[tuple[str, str]]:
    """Returns the names and values of a query, decoded: as the service does, a plus sign is a blank."""
    parts = (part.partition("=") for part in query.split("&") if part)
    return [
        (unquote_plus(name, errors="surrogateescape"), unquote_plus(value, errors="surrogateescape"))
        for name, _, value in parts
    ]


def read_signature(request: HttpRequest) -> Signed | None:
    """Returns what a request says about its signature, None when it has none.

    Raises:
        Malformed: it has one that cannot be read.
    """
    authorization = request.headers.get("authorization")
    parameters = dict(query_pairs(request.raw_query))
    if authorization:
        return _of_header(authorization, request.headers.get("x-amz-date"))
    if "X-Amz-Signature" in parameters or "X-Amz-Algorithm" in parameters:
        return _of_query(parameters)
    if {"AWSAccessKeyId", "Signature", "Expires"} <= parameters.keys():
        if not parameters["Expires"].isdecimal():
            raise Malformed("Expires is no number")
        until = float(parameters["Expires"][:12])
        key = parameters["AWSAccessKeyId"]
        return Signed(key, parameters["Signature"], 0.0, until, service="s3", version=2, in_query=True)
    return None


def _of_header(authorization: str, date: str) -> Signed:
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != ALGORITHM:
        raise Malformed(f"the algorithm of a signature is {ALGORITHM}")
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    missing = [name for name in ("Credential", "SignedHeaders", "Signature") if not parts.get(name)]
    if missing:
        raise Malformed(f"Authorization header requires '{missing[0]}' parameter.")
    return _scoped(parts["Credential"], parts["SignedHeaders"], parts["Signature"], date, None)


def _of_query(parameters: dict[str, str]) -> Signed:
    names = ("X-Amz-Credential", "X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Date", "X-Amz-Expires")
    missing = [name for name in names if not parameters.get(name)]
    if parameters.get("X-Amz-Algorithm") != ALGORITHM or missing:
        raise Malformed(f"a presigned address needs X-Amz-Algorithm={ALGORITHM}, {', '.join(names)}")
    credential, signed, signature, date, lasts = (parameters[name] for name in names)
    if not lasts.isdecimal() or len(lasts) > 9 or not 0 < int(lasts) <= _MOST_SECONDS:
        raise Malformed(f"X-Amz-Expires must be 1 to {_MOST_SECONDS} seconds")
    return _scoped(credential, signed, signature, date, int(lasts))


def _scoped(credential: str, names: str, signature: str, date: str, lasts: int | None) -> Signed:
    parts = credential.split("/")
    if len(parts) != 5 or parts[4] != "aws4_request" or not all(parts):
        raise Malformed("Credential must have the form KEY/DATE/REGION/SERVICE/aws4_request")
    key, day, region, service, _ = parts
    try:
        moment = datetime.strptime(date, _STAMP).replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        raise Malformed("X-Amz-Date must have the form 20260101T000000Z") from None
    if not date.startswith(f"{day}T"):
        raise Malformed("Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP")
    signed = tuple(names.split(";"))
    if "host" not in signed or (lasts is None and "x-amz-date" not in signed):
        raise Malformed("host and x-amz-date must be signed")
    expires = None if lasts is None else moment + lasts
    return Signed(key, signature, moment, expires, day, region, service, signed, in_query=lasts is not None)


def matches(signed: Signed, request: HttpRequest, secret: str, body_hash: str) -> bool:
    """Tells whether a signature is that of the request and a secret.

    Args:
        signed: what the request says.
        request: the request.
        secret: of the key that it names.
        body_hash: SHA-256 of the body in hex, or what the signed header ``x-amz-content-sha256`` says in its place.
    """
    wanted = _version_2(request, secret) if signed.version == 2 else _version_4(signed, request, secret, body_hash)
    return hmac.compare_digest(wanted.encode(), signed.signature.encode(errors="replace"))


def _version_4(signed: Signed, request: HttpRequest, secret: str, body_hash: str) -> str:
    path = request.raw_path or "/"
    if signed.service != "s3":
        path = quote(path, safe="/~")
    pairs = query_pairs(request.raw_query)
    if signed.in_query:
        pairs = [pair for pair in pairs if pair[0] != "X-Amz-Signature"]
    canonical = [
        request.method,
        path,
        "&".join(f"{name}={value}" for name, value in sorted((_quoted(a), _quoted(b)) for a, b in pairs)),
        *(f"{name}:{_values(request.headers, name)}" for name in signed.names),
        "",
        ";".join(signed.names),
        body_hash,
    ]
    digest = hashlib.sha256("\n".join(canonical).encode(errors="surrogateescape")).hexdigest()
    text = f"{ALGORITHM}\n{stamp_of(signed)}\n{scope_of(signed)}\n{digest}"
    return hmac.new(signing_key(signed, secret), text.encode(errors="surrogateescape"), "sha256").hexdigest()


def stamp_of(signed: Signed) -> str:
    """Returns when a request was signed, as it is part of what is signed."""
    return datetime.fromtimestamp(signed.moment, timezone.utc).strftime(_STAMP)


def scope_of(signed: Signed) -> str:
    """Returns the credential scope of a signature of version 4."""
    return f"{signed.date}/{signed.region}/{signed.service}/aws4_request"


def signing_key(signed: Signed, secret: str) -> bytes:
    """Returns the key that signs in the credential scope of a signature."""
    key = f"AWS4{secret}".encode()
    for part in scope_of(signed).split("/"):
        key = hmac.digest(key, part.encode(errors="surrogateescape"), "sha256")
    return key


def _version_2(request: HttpRequest, secret: str) -> str:
    pairs = query_pairs(request.raw_query)
    expires = next(value for name, value in pairs if name == "Expires")
    resources = sorted((name, value) for name, value in pairs if name in _V2_PARAMETERS)
    amazon = sorted({name.lower() for name, _ in request.headers if name.lower().startswith("x-amz-")})
    shown = [f"{name}={value}" if value else name for name, value in resources]
    path = request.raw_path
    if path.count("/") == 1 and path != "/":
        path += "/"  # of a bucket
    text = "\n".join(
        [
            request.method,
            request.headers.get("content-md5"),
            request.headers.get("content-type"),
            expires,
            *(f"{name}:{_values(request.headers, name)}" for name in amazon),
            path + ("?" + "&".join(shown) if shown else ""),
        ]
    )
    digest = hmac.digest(secret.encode(), text.encode(errors="surrogateescape"), "sha1")
    return base64.b64encode(digest).decode()


def _values(headers: Headers, name: str) -> str:
    return ",".join(" ".join(value.split()) for value in headers.get_all(name))


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~", errors="surrogateescape")


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
