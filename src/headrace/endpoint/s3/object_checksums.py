"""Checksums of objects: what clients send with an upload, checked while it comes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Any, Protocol

from headrace.endpoint.s3.s3_errors import S3Error
from headrace.errors import UsageError
from headrace.install_hint import install_hint

HEADER = "x-amz-checksum-"
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
