"""The keys of an endpoint, and who sent a request: Host, Origin, clock, key and signature are looked at, in this order.

The endpoint starts programs as the user who runs it. Every other user of the machine can open its port, and so can a
page in a browser; so nothing is answered without a signature. A refusal has the code that the service itself has.

There are the user's own key, that of those who carry the data of his jobs, and one of each job. The first two are made
once, at random, and lie in the store in a file that only its owner may read. No AWS account knows them: a client that
ignores the endpoint's address is refused by AWS and harms nothing. The key of a job follows from the second one and the
job's uid, so it is the same after the endpoint was started again.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import string
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec

from headrace.endpoint.auth.signatures import (
    PAYLOAD,
    PAYLOAD_TRAILER,
    ChunkSignatures,
    Malformed,
    Signed,
    matches,
    read_signature,
)
from headrace.endpoint.http.http_message import HttpRequest
from headrace.endpoint.wire.models import Protocol, ServiceError, protocol_of
from headrace.errors import UsageError
from headrace.private_folders import write_private

FILE = "keys.json"
_LETTERS = string.ascii_uppercase + "234567"


class Holder(str, Enum):
    """Who has a key: the user, or a job's programs and those who carry its data."""

    USER = "user"
    PROGRAM = "program"


class AccessKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key: who has it, its id and its secret; of a job's programs, the uid of the job."""

    holder: Holder
    key_id: str
    secret: str
    job: str = ""

    def __repr__(self) -> str:
        return f"AccessKey({self.holder.value}, {self.key_id})"


_decoder = msgspec.json.Decoder(tuple[AccessKey, ...])


class AccessKeys:
    """The keys of an endpoint."""

    def __init__(self, keys: tuple[AccessKey, ...]) -> None:
        self._by_id = {key.key_id: key for key in keys}
        self.user = next(key for key in keys if key.holder is Holder.USER)
        self.program = next(key for key in keys if key.holder is Holder.PROGRAM)

    def find(self, key_id: str) -> AccessKey | None:
        """Returns the key of that id."""
        uid = key_id.removeprefix(self.program.key_id).lower() if key_id.startswith(self.program.key_id) else ""
        return self.of_job(uid) if uid else self._by_id.get(key_id)

    def of_job(self, uid: str) -> AccessKey:
        """Returns the key of the programs of a job."""
        secret = hmac.digest(self.program.secret.encode(), uid.encode(errors="replace"), "sha256").hex()
        return AccessKey(Holder.PROGRAM, f"{self.program.key_id}{uid.upper()}", secret, uid)


def keys_of(store: Path) -> AccessKeys:
    """Returns the keys of a store, which are made when they are not there.

    Raises:
        UsageError: the file can be read by others, is damaged, or cannot be written.
    """
    path = store / FILE
    try:
        _make(path)
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise UsageError(f"{path}: its mode is {mode:o}, so others can read the keys", f"chmod 600 {path}")
        return AccessKeys(_decoder.decode(path.read_bytes()))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", "name another folder with --store") from error
    except (msgspec.DecodeError, StopIteration) as error:
        raise UsageError(f"{path} holds no keys: {error}", "remove it; new keys are made then") from error


def _make(path: Path) -> None:
    if path.exists():
        return
    keys = tuple(AccessKey(holder, _key_id(), secrets.token_urlsafe(30)) for holder in Holder)
    write_private(path, msgspec.json.format(msgspec.json.encode(keys)) + b"\n")


def _key_id() -> str:
    return "HEADRACE" + "".join(secrets.choice(_LETTERS) for _ in range(12))


SKEW_SECONDS = 300.0
PROGRAM_SERVICES = frozenset({"s3", "logs", "sts", "sagemaker", "monitoring"})
"""What the programs of a job may call; of sagemaker no more than reading, see `headrace.endpoint.training_jobs`."""
HOSTS = frozenset({"localhost", "machine.headrace.internal"})
_SIGNED_CHUNKS = (PAYLOAD, PAYLOAD_TRAILER)
_BODY_WORDS = ("UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", *_SIGNED_CHUNKS)
_ATTEMPT_LETTERS = 200
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Caller:
    """A request whose signature is right.

    Attributes:
        holder: whose key it is.
        key_id: the key.
        service: that it is signed for, e.g. ``sagemaker``.
        region: that it is signed for.
        signature: which no other request has.
        body_hash: SHA-256 that the body must have, in hex; empty when the body is not signed.
        attempt: the id that the client gave the call; it is the same when the client sends it again.
        chunks: the signatures that the chunks of the body must have; None when they are not signed.
        job: of whose programs the key is: its uid, and its name once it was looked up; empty of other keys.
    """

    holder: Holder
    key_id: str
    service: str
    region: str
    signature: str
    body_hash: str
    attempt: str = ""
    chunks: ChunkSignatures | None = None
    job: str = ""

    def owns(self, job: str) -> bool:
        """Tells whether the job of that name is the caller's: the user's are all, of a job's programs their own."""
        return self.holder is Holder.USER or (bool(self.job) and job == self.job)


class Gatekeeper:
    """Lets requests in.

    Args:
        keys: that count.
        hosts: further names under which the endpoint is called, lower case, without the port.
    """

    def __init__(self, keys: AccessKeys, hosts: frozenset[str] = frozenset()) -> None:
        self._keys = keys
        self._hosts = HOSTS | hosts

    def admit(self, request: HttpRequest, read_body: Callable[[], bytes]) -> Caller:
        """Returns who sent a request.

        Args:
            request: the request.
            read_body: reads the body, when the signature needs it. Not called for S3.

        Raises:
            ServiceError: it may not come in.
        """
        protocol = protocol_of(request, "")
        self._check_origin(request, protocol)
        try:
            signed = read_signature(request)
        except Malformed as error:
            raise _refusal("incomplete", str(error), protocol) from error
        if signed is None:
            raise _refusal("missing", "Missing Authentication Token", protocol)
        protocol = protocol_of(request, signed.service)
        key = self._keys.find(signed.key_id)
        if key is None:
            raise _refusal("unknown key", "The security token included in the request is invalid.", protocol)
        self._check_clock(signed, protocol)
        body_hash = self._hash_of(signed, request, read_body, protocol)
        if not matches(signed, request, key.secret, body_hash):
            raise _refusal("mismatch", _MISMATCH, protocol)
        if signed.service == "s3" and signed.version == 4 and (others := _not_signed(signed, request)):
            words = f"There were headers present in the request which were not signed: {', '.join(others)}"
            raise _refusal("denied", words, protocol)
        if key.holder is Holder.PROGRAM and signed.service not in PROGRAM_SERVICES:
            words = f"the key of a job's programs may not call {signed.service}"
            raise _refusal("denied", words, protocol)
        wanted = body_hash if _SHA256.fullmatch(body_hash) and not signed.in_query else ""
        attempt = request.headers.get("amz-sdk-invocation-id")[:_ATTEMPT_LETTERS]
        chunks = ChunkSignatures(signed, key.secret) if body_hash in _SIGNED_CHUNKS and not signed.in_query else None
        return Caller(
            key.holder, key.key_id, signed.service, signed.region, signed.signature, wanted, attempt, chunks, key.job
        )  # fmt: skip

    def _check_origin(self, request: HttpRequest, protocol: Protocol) -> None:
        named = request.headers.get_all("host")
        host = _without_port(named[0].lower()) if len(named) == 1 else ""
        if not self._known(host):
            raise _refusal("denied", f"this endpoint is not called {host!r}", protocol)
        for header in ("origin", "sec-fetch-site"):
            if request.headers.get(header):
                raise _refusal("denied", "this endpoint does not answer to pages in a browser", protocol)

    def _known(self, host: str) -> bool:
        if host in self._hosts:
            return True
        try:
            return ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:
            return False

    def _check_clock(self, signed: Signed, protocol: Protocol) -> None:
        now = time.time()
        if signed.expires is not None:
            if signed.moment > now + SKEW_SECONDS or now > signed.expires:
                raise _refusal("expired", "Request has expired", protocol)
        elif abs(now - signed.moment) > SKEW_SECONDS:
            words = "expired" if signed.moment < now else "not yet current"
            stamps = " vs ".join(time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(t)) for t in (signed.moment, now))
            raise _refusal("skewed", f"Signature {words}: {stamps} ({SKEW_SECONDS / 60:.0f} min.)", protocol)

    def _hash_of(self, signed: Signed, request: HttpRequest, read_body: Callable[[], bytes], protocol: Protocol) -> str:
        digest = request.headers.get("x-amz-content-sha256")
        if signed.service == "s3":
            if signed.in_query:
                return digest or "UNSIGNED-PAYLOAD"
            if not digest:
                words = "Missing required header for this request: x-amz-content-sha256"
                raise _refusal("incomplete", words, protocol)
            if digest.startswith("STREAMING-") and digest not in _BODY_WORDS:
                raise ServiceError("NotImplemented", f"a body of the kind {digest} is not understood here", 501)
            if digest not in _BODY_WORDS and not _SHA256.fullmatch(digest):
                raise ServiceError("InvalidArgument", "x-amz-content-sha256 is neither a hash nor a known word")
            return digest
        real = hashlib.sha256(read_body()).hexdigest()
        if _SHA256.fullmatch(digest) and digest != real:
            raise _refusal("mismatch", _MISMATCH, protocol)
        return real


def _not_signed(signed: Signed, request: HttpRequest) -> list[str]:
    """Returns the headers by which S3 does something, and which whoever made the signature does not answer for."""
    return sorted({name.lower() for name, _ in request.headers if name.lower().startswith("x-amz-")} - {*signed.names})


def _without_port(host: str) -> str:
    return re.sub(r":\d+$", "", host)


_SIGNED_WRONG = ("SignatureDoesNotMatch", "InvalidSignatureException")
_CODES = {
    "missing": ("AccessDenied", "MissingAuthenticationToken", "MissingAuthenticationTokenException"),
    "incomplete": ("AuthorizationHeaderMalformed", "IncompleteSignature", "IncompleteSignatureException"),
    "unknown key": ("InvalidAccessKeyId", "InvalidClientTokenId", "UnrecognizedClientException"),
    "mismatch": ("SignatureDoesNotMatch", *_SIGNED_WRONG),
    "skewed": ("RequestTimeTooSkewed", *_SIGNED_WRONG),
    "expired": ("AccessDenied", *_SIGNED_WRONG),
    "denied": ("AccessDenied", "AccessDenied", "AccessDeniedException"),
}
"""Codes of a refusal: those of S3, of Query, and of all others."""
_MISMATCH = "The request signature we calculated does not match the signature you provided."


def _refusal(kind: str, words: str, protocol: Protocol) -> ServiceError:
    s3, query, other = _CODES[kind]
    if protocol in (Protocol.S3, Protocol.QUERY):
        return ServiceError(s3 if protocol is Protocol.S3 else query, words, 403)
    return ServiceError(other, words)
