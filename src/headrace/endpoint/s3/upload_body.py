"""The bytes of an upload: without the framing that some clients put around them, and checked by what came with them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from headrace.endpoint.http.http_message import (
    BodyProblem,
    ClientGone,
    FramingCheck,
    HttpRequest,
    RequestBody,
    chunk_size,
    take_into,
)
from headrace.endpoint.s3.s3_errors import S3Error
from headrace.errors import UsageError
from headrace.install_hint import install_hint

HEADER = "x-amz-checksum-"
_NO_ALGORITHMS = {"type", "mode", "algorithm"}  # what else such a header may be about
FULL, COMPOSITE = "FULL_OBJECT", "COMPOSITE"


class Digest(Protocol):
    """What takes bytes and gives their checksum."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Takes the next bytes."""

    def digest(self) -> bytes:
        """Returns the checksum of all that was taken."""


class _Crc:
    def __init__(self, step: Callable[[bytes | memoryview, int], int], size: int) -> None:
        self._step = step
        self._size = size
        self._value = 0

    def update(self, data: bytes | memoryview, /) -> None:
        self._value = self._step(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


_MAKERS: Mapping[str, Callable[[], Digest]] = {
    "crc32": lambda: _Crc(_crc32(), 4),
    "crc32c": lambda: _Crc(_library().crc32c, 4),
    "crc64nvme": lambda: _Crc(_library().crc64nvme, 8),
    "sha1": hashlib.sha1,
    "sha256": hashlib.sha256,
    "sha512": hashlib.sha512,
    "md5": lambda: hashlib.md5(usedforsecurity=False),
}
_COMBINED = ("crc32", "crc32c", "crc64nvme")


def require_checksums() -> None:
    """Checks that all checksums of S3 can be computed.

    Raises:
        UsageError: a library is missing.
    """
    for name in ("awscrt", "isal"):
        if find_spec(name) is None:
            words = f"S3 needs the library {name} for its checksums, which is not installed"
            raise UsageError(words, hint=install_hint("serve"))


def _library() -> Any:
    from awscrt import checksums  # 5 MB of memory, for what few clients ask for

    return checksums


def _crc32() -> Callable[[bytes | memoryview, int], int]:
    from isal import isal_zlib  # ten times as fast as zlib's

    return isal_zlib.crc32


def make_digest(algorithm: str) -> Digest:
    """Returns a new digest.

    Args:
        algorithm: in small letters, as headers name it.

    Raises:
        S3Error: it is not known here.
    """
    if algorithm not in _MAKERS:
        raise S3Error("NotImplemented", f"checksums of the algorithm {algorithm} cannot be checked here")
    return _MAKERS[algorithm]()


def encode(digest: bytes) -> str:
    """Returns a checksum as headers hold it."""
    return base64.b64encode(digest).decode()


def decode(given: str, algorithm: str) -> bytes:
    """Returns the checksum that a header holds.

    Raises:
        S3Error: it holds none.
    """
    size = len(make_digest(algorithm).digest())
    try:
        value = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if len(value) != size:
        if algorithm == "md5":
            raise S3Error("InvalidDigest")
        raise S3Error("InvalidRequest", f"Value for {HEADER}{algorithm} header is invalid.")
    return value


def check(given: str, digest: bytes, algorithm: str) -> None:
    """Checks a checksum that a client has sent.

    Raises:
        S3Error: it is another one.
    """
    if decode(given, algorithm) != digest:
        raise S3Error("BadDigest", f"The {algorithm.upper()} you specified did not match the calculated checksum.")


def digest_of(algorithm: str, descriptor: int, offset: int, size: int) -> bytes:
    """Returns the checksum of a part of a file.

    Raises:
        S3Error: the algorithm is not known here.
    """
    digest, end = make_digest(algorithm), offset + size
    while offset < end and (data := os.pread(descriptor, min(1 << 18, end - offset), offset)):
        digest.update(data)
        offset += len(data)
    return digest.digest()


def of_parts(algorithm: str, kind: str, parts: Iterable[tuple[bytes, int]]) -> str:
    """Returns the checksum of an object that was uploaded in parts, as headers hold it.

    Args:
        algorithm: of the parts' checksums.
        kind: FULL_OBJECT, of all bytes, or COMPOSITE, of the parts' checksums.
        parts: checksum and bytes of each.

    Raises:
        S3Error: there is no such checksum.
    """
    given = list(parts)
    if kind == COMPOSITE:
        digest = make_digest(algorithm)
        for value, _ in given:
            digest.update(value)
        return f"{encode(digest.digest())}-{len(given)}"
    if algorithm not in _COMBINED:
        raise S3Error("InvalidRequest", f"The FULL_OBJECT checksum type cannot be used with {algorithm}.")
    combine = getattr(_library(), f"combine_{algorithm}")
    total = 0
    for value, size in given:
        total = combine(total, int.from_bytes(value, "big"), size)
    return encode(total.to_bytes(len(given[0][0]) if given else 4, "big"))


_WRITTEN_BYTES = 1 << 19  # at once: large pieces cost a file system less
_LINE_BYTES = 1024
_TRAILERS = 16
_STREAMING = "STREAMING-"
_CHUNK_SIGNATURE = "chunk-signature="
_TRAILER_SIGNATURE = "x-amz-trailer-signature"
PART_LIMIT = 5 << 30


@dataclass(frozen=True)
class Received:
    """What came.

    Attributes:
        size: bytes.
        md5: of them, hexadecimal.
        checksums: those that the client sent, which are right: algorithm to value, as headers hold it.
    """

    size: int
    md5: str
    checksums: dict[str, str]


def expected_size(request: HttpRequest) -> int | None:
    """Returns how many bytes an upload says to have without its framing; None if it does not say.

    Raises:
        S3Error: it says something else than a number, or nothing and is not chunked.
    """
    if is_framed(request):
        decoded = request.headers.get("x-amz-decoded-content-length")
        if not decoded.isascii() or not decoded.isdigit() or len(decoded) > 19:
            raise S3Error("MissingContentLength")
        return int(decoded)
    if request.body.length is not None and "content-length" not in request.headers:
        raise S3Error("MissingContentLength")
    return request.body.length


def is_framed(request: HttpRequest) -> bool:
    """Tells whether an upload has the framing ``aws-chunked`` around its bytes."""
    codings = [each.strip().lower() for each in request.headers.get("content-encoding").split(",")]
    return "aws-chunked" in codings or request.headers.get("x-amz-content-sha256").startswith(_STREAMING)


def receive(request: HttpRequest, file: int, offset: int = 0, limit: int = PART_LIMIT) -> Received:
    """Writes the bytes of an upload to a file.

    Args:
        request: the upload.
        file: descriptor.
        offset: where they are written.
        limit: bytes that they may have.

    Raises:
        S3Error: they are not those that the request tells of, or did not come.
    """
    expected = expected_size(request)
    if expected is not None and expected > limit:
        raise S3Error("EntityTooLarge", ProposedSize=str(expected), MaxSizeAllowed=str(limit))
    framed = AwsChunked(request.body, request.framing) if is_framed(request) else None
    body: RequestBody = framed or request.body
    names = _announced(request)
    taken = {"sha256"} if body.sha256 is not None else set()  # by the check of the signature
    digests = {name: make_digest(name) for name in {"md5", *names} - taken}
    size = 0
    buffer = _memory(min(expected or _WRITTEN_BYTES, _WRITTEN_BYTES))
    try:
        while count := body.fill(buffer):
            if size + count > (limit if expected is None else expected):
                raise S3Error("IncompleteBody" if expected is not None else "EntityTooLarge")
            data = buffer[:count]
            _write(file, data, offset + size)
            size += count
            for digest in digests.values():
                digest.update(data)
    except ClientGone:
        raise
    except BodyProblem as problem:
        raise of_body(problem) from problem
    if expected is not None and size != expected:
        raise S3Error("IncompleteBody")
    found = {name: digest.digest() for name, digest in digests.items()}
    if taken & names and body.sha256 is not None:
        found["sha256"] = body.sha256
    given = {name: request.headers.get(HEADER + name) for name in names}
    for name, value in (framed.trailers if framed is not None else {}).items():
        if name.startswith(HEADER):
            given[name.removeprefix(HEADER)] = value
    for name, value in given.items():
        if name not in found:
            raise S3Error("InvalidRequest", f"the trailer {HEADER}{name} was not announced by x-amz-trailer")
        check(value, found[name], name)
    if "content-md5" in request.headers:
        check(request.headers["content-md5"], found["md5"], "md5")
    return Received(size, found["md5"].hex(), {name: encode(found[name]) for name in given})


def of_body(problem: BodyProblem) -> S3Error:
    """Returns S3's error for a body that did not come."""
    code = {408: "RequestTimeout", 413: "EntityTooLarge"}.get(problem.status, "IncompleteBody")
    return S3Error(code, problem.message, headers=(("Connection", "close"),))


def receive_small(request: HttpRequest, limit: int) -> bytes:
    """Returns a body that is a document, checked as an upload is.

    Args:
        request: what brings it.
        limit: bytes that it may have.

    Raises:
        S3Error: it is not what the request tells of.
    """
    memory = os.memfd_create("document", os.MFD_CLOEXEC)
    try:
        received = receive(request, memory, limit=limit)
        return os.pread(memory, received.size, 0) if received.size else b""
    finally:
        os.close(memory)


def stated_checksums(http: HttpRequest) -> dict[str, str]:
    """Returns the checksums that stand in the head of a request: algorithm to value."""
    names = {name.lower().removeprefix(HEADER) for name, _ in http.headers if name.lower().startswith(HEADER)}
    return {name: http.headers[HEADER + name] for name in names - _NO_ALGORITHMS}


def _announced(request: HttpRequest) -> set[str]:
    """Returns the algorithms of the checksums that come with an upload, before or after its bytes."""
    trailers = (each.strip().lower() for each in request.headers.get("x-amz-trailer").split(","))
    later = {each.removeprefix(HEADER) for each in trailers if each.startswith(HEADER)}
    return {*stated_checksums(request)} | (later - _NO_ALGORITHMS)


def _memory(size: int) -> memoryview:
    """Returns memory that goes back to the system, and not to a thread's heap, when nobody uses it any more."""
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _write(file: int, view: memoryview, offset: int) -> None:
    while view:
        written = os.pwrite(file, view, offset)
        offset += written
        view = view[written:]


class AwsChunked(RequestBody):
    """A body without the framing ``aws-chunked``: ``size[;chunk-signature=...]``, the bytes, ... ``0``, trailers.

    Args:
        body: with the framing.
        check: looks at the signatures; None: there are none.
    """

    def __init__(self, body: RequestBody, check: FramingCheck | None = None) -> None:
        self._body = body
        self._check = check
        self._signature = ""
        self._hash = hashlib.sha256()
        self._buffer = bytearray()
        self._left = 0
        self._between = False
        self._done = False
        self.trailers: dict[str, str] = {}

    @property
    def length(self) -> None:
        """Is not known."""
        return

    def readinto(self, buffer: memoryview) -> int:
        """See `RequestBody`; at the end the trailers have been read."""
        while not self._left and not self._done:
            self._next_chunk()
        if self._done:
            return 0
        count = self._piece(buffer[: self._left])
        self._left -= count
        self._between = not self._left
        if self._check is not None:
            self._hash.update(buffer[:count])
            if not self._left:
                self._check_chunk()
        return count

    def _check_chunk(self) -> None:
        if self._check is not None:
            self._check.chunk(self._signature, self._hash.hexdigest())
            self._hash = hashlib.sha256()

    def _piece(self, buffer: memoryview) -> int:
        if not self._buffer:
            if not (count := self._body.readinto(buffer)):
                raise BodyProblem(400, "the body ends in the middle of a chunk")
            return count
        return take_into(buffer, self._buffer)

    def _next_chunk(self) -> None:
        if self._between and self._line():
            raise BodyProblem(400, "a chunk of the body is longer than it says", closes=True)
        self._between = False
        digits, _, extension = self._line().partition(b";")
        self._signature = extension.strip().decode("latin-1").removeprefix(_CHUNK_SIGNATURE)
        self._left = chunk_size(digits)
        if self._left:
            return
        self._done = True
        self._check_chunk()
        while line := self._line(last=True):
            name, _, value = line.decode("latin-1").partition(":")
            self.trailers[name.strip().lower()] = value.strip()
            if len(self.trailers) > _TRAILERS:
                raise BodyProblem(400, f"a body may have {_TRAILERS} trailers", closes=True)
        signature = self.trailers.pop(_TRAILER_SIGNATURE, "")
        if self._check is not None and (self.trailers or signature):
            self._check.trailers(signature, self.trailers)
        while self._body.read(_LINE_BYTES):
            pass

    def _line(self, *, last: bool = False) -> bytes:
        """Returns the next line; at the end of the body an empty one, where it may end."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _LINE_BYTES:
                raise BodyProblem(400, "the chunks of a body are framed by short lines", closes=True)
            data = self._body.read(_LINE_BYTES)
            if not data:
                if last:
                    rest, self._buffer = bytes(self._buffer), bytearray()
                    return rest
                raise BodyProblem(400, "the body ends before its last chunk")
            self._buffer += data
        line = bytes(self._buffer[:end]).rstrip(b"\r")
        del self._buffer[: end + 1]
        return line
