"""What a request and a reply are, for whoever answers requests; and what may be asked: how large, how many, how slow.

A request's target and headers are kept as they were sent, since signatures are made of them. Bodies are streams: an
upload is never held in memory.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.errors import HeadraceError

CHUNK_BYTES = 1 << 18
"""How much of a file is read at once."""
_DOCUMENT_BYTES = 1 << 16
_NO_HEADER = re.compile(r"[\0\n\r\v\f]")


class HttpProblem(HeadraceError):
    """A request that cannot be answered as it was meant. The server sends `status` with the message as text.

    Args:
        status: HTTP's status, 400 to 599.
        message: what is wrong, for people.
        hint: what to do about it.
        closes: the connection cannot be used any more, since nobody knows where the next request begins.
    """

    def __init__(self, status: int, message: str, hint: str = "", *, closes: bool = False) -> None:
        super().__init__(message, hint)
        self.status = status
        self.closes = closes


class BodyProblem(HttpProblem):
    """A body that did not arrive whole: malformed, too slow, larger than allowed, or its sender has gone."""


class ClientGone(BodyProblem):
    """The other end closed the connection, or stood still for too long. There is nobody to answer."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message, closes=True)


class Headers:
    """Headers in the order in which they came. Names are compared without regard to case.

    Args:
        pairs: name and value of each, the name as it was sent, the value without blanks around it.
    """

    __slots__ = ("_first", "_pairs")

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs = tuple(pairs)
        self._first: dict[str, str] = {}
        for name, value in self._pairs:
            self._first.setdefault(name.lower(), value)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._first

    def __getitem__(self, name: str) -> str:
        return self._first[name.lower()]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        return f"Headers({list(self._pairs)!r})"

    def get(self, name: str, default: str = "") -> str:
        """Returns the first value of a header; `default` if there is none."""
        return self._first.get(name.lower(), default)

    def get_all(self, name: str) -> list[str]:
        """Returns all values of a header, in order."""
        wanted = name.lower()
        return [value for each, value in self._pairs if each.lower() == wanted]


def chunk_size(digits: bytes) -> int:
    """Returns the bytes of a chunk, as the line before it tells them.

    Raises:
        BodyProblem: they are no hexadecimal number.
    """
    if not 0 < len(digits) <= 16 or digits.strip(b"0123456789abcdefABCDEF"):
        raise BodyProblem(400, "the length of a chunk is a hexadecimal number", closes=True)
    return int(digits, 16)


def take_into(buffer: memoryview, pending: bytearray) -> int:
    """Moves the first of the bytes that came into a buffer. Returns their number."""
    count = min(len(buffer), len(pending))
    buffer[:count] = pending[:count]
    del pending[:count]
    return count


class RequestBody(ABC):
    """A body that is read once, from its beginning to its end."""

    @property
    @abstractmethod
    def length(self) -> int | None:
        """Bytes in all, if the head of the request says so; None for a chunked body."""

    @property
    def sha256(self) -> bytes | None:
        """SHA-256 of what has been read, where a check of the body takes it anyway; else None."""
        return None

    @abstractmethod
    def readinto(self, buffer: memoryview) -> int:
        """Puts the next bytes into a buffer of 1 or more: as many as are there. Returns their number; 0 at the end.

        Raises:
            BodyProblem: it is malformed, too large or too slow, or the sender has gone.
        """

    def read(self, size: int) -> bytes:
        """Returns the next bytes, `size` at most (1 or more); empty at the end of the body. For what is small.

        Raises:
            BodyProblem: as `readinto`.
        """
        buffer = bytearray(size)
        return bytes(buffer[: self.readinto(memoryview(buffer))])

    def fill(self, buffer: memoryview) -> int:
        """Puts the next bytes into a buffer until it is full or the body ends. Returns their number.

        Raises:
            BodyProblem: as `readinto`.
        """
        filled = 0
        while filled < len(buffer) and (count := self.readinto(buffer[filled:])):
            filled += count
        return filled

    def read_all(self, limit: int) -> bytes:
        """Returns what is left of the body.

        Args:
            limit: bytes that it may have.

        Raises:
            BodyProblem: it is longer (status 413), or did not arrive whole.
        """
        if self.length is not None and self.length > limit:
            raise BodyProblem(413, f"the body has {self.length} bytes; at most {limit} are read here")
        parts: list[bytes] = []
        left = limit
        while part := self.read(min(_DOCUMENT_BYTES, left + 1)):
            left -= len(part)
            if left < 0:
                raise BodyProblem(413, f"the body has more than the {limit} bytes that are read here")
            parts.append(part)
        return b"".join(parts)


class FramingCheck(ABC):
    """Checks what stands in the framing of an upload beside its bytes, in order."""

    @abstractmethod
    def chunk(self, signature: str, digest: str) -> None:
        """Checks a chunk that has been read; the last one is empty.

        Args:
            signature: that came with it; empty if none did.
            digest: SHA-256 of its bytes, in hex.
        """

    @abstractmethod
    def trailers(self, signature: str, trailers: Mapping[str, str]) -> None:
        """Checks what comes after the last chunk.

        Args:
            signature: that came with it.
            trailers: names, in small letters, and values.
        """


class BytesBody(RequestBody):
    """A body that is in memory."""

    def __init__(self, data: bytes = b"") -> None:
        self._data = data
        self._at = 0

    @property
    def length(self) -> int:
        """Bytes in all."""
        return len(self._data)

    def readinto(self, buffer: memoryview) -> int:
        """See `RequestBody`."""
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


@dataclass(frozen=True)
class HttpRequest:
    """A request.

    Attributes:
        method: as it was sent, e.g. ``PUT``.
        raw_path: path of the target as it was sent: not decoded, not normalised, e.g. ``/bucket//a%20b/../c``.
        raw_query: what stands after the first ``?``, as it was sent; empty if nothing does.
        headers: in the order in which they were sent.
        body: is read once. Whoever checks it puts another one around it: ``dataclasses.replace(request, body=...)``.
        secure: the request came through TLS.
        framing: checks the framing ``aws-chunked`` of the body; None when nothing of it is signed.
        prove: is called when the sender is known; before, his connection makes room for others.
    """

    method: str
    raw_path: str
    raw_query: str = ""
    headers: Headers = field(default_factory=Headers)
    body: RequestBody = field(default_factory=BytesBody)
    secure: bool = False
    framing: FramingCheck | None = None
    prove: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class FileSlice:
    """Part of a file as the body of a reply, sent by the kernel.

    Attributes:
        file: an open descriptor, which is closed after the reply (or when there is none).
        offset: where it begins.
        size: bytes; the file has at least offset + size.
    """

    file: int
    offset: int
    size: int


@dataclass(frozen=True)
class HttpReply:
    """A reply.

    Attributes:
        status: HTTP's status.
        headers: names and values. The server adds Content-Length or Transfer-Encoding, Date and Connection itself;
            Content-Length given here counts in replies to HEAD only, and ``Connection: close`` is heeded.
        body: all of it, part of a file, or pieces that are sent one after the other as they are made.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | FileSlice | Iterator[bytes] = b""

    def __post_init__(self) -> None:
        for part in (each for pair in self.headers for each in pair):
            if _NO_HEADER.search(part):
                raise ValueError(f"a header of a reply has a line end: {part!r}")


Handler = Callable[[HttpRequest], HttpReply]
"""Answers a request; called by many threads at once. It may raise `HttpProblem`."""


@dataclass(frozen=True)
class HttpLimits:
    """Limits of a server. Every wait of a connection is bounded by one of them.

    Attributes:
        head_bytes: request line and headers together.
        target_bytes: the request line's target.
        headers: their number.
        body_bytes: of one request; 5 GiB is what S3 takes in one PutObject.
        connections: open at once, each with a thread. One more takes the place of the oldest that has shown no key,
            else of the one that was idle the longest.
        idle_seconds: between two requests of a connection.
        kept_seconds: how long a connection may be idle, or its sender unknown, at least, before another one takes its
            place: in TLS's handshake, in a head, in a body that is needed to check its signature.
        head_seconds: from the first byte of a request to the end of its head; also for TLS's handshake.
        stall_seconds: without a byte, in the middle of a body or reply.
        slowest: bytes a second that a body or reply needs on average, after `pace_seconds`.
        pace_seconds: from when on `slowest` is asked for.
        drain_bytes: of a body that nobody read, to keep the connection.
        drain_seconds: at most for that, and to let a client read the last reply before its connection is closed.
    """

    head_bytes: int = 1 << 16
    target_bytes: int = 1 << 14
    headers: int = 128
    body_bytes: int = 5 << 30
    connections: int = 256
    idle_seconds: float = 75.0
    kept_seconds: float = 1.0
    head_seconds: float = 15.0
    stall_seconds: float = 30.0
    slowest: float = 1000.0
    pace_seconds: float = 60.0
    drain_bytes: int = 1 << 20
    drain_seconds: float = 2.0


class Pace:
    """Counts the bytes of one body or reply, and ends one that is slower than the limits allow."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._began = time.monotonic()
        self._bytes = 0

    def moved(self, count: int) -> None:
        """Counts bytes.

        Raises:
            BodyProblem: they come or go too slowly.
        """
        self._bytes += count
        seconds = time.monotonic() - self._began
        if seconds > self._limits.pace_seconds and self._bytes < seconds * self._limits.slowest:
            raise BodyProblem(
                408,
                f"{self._bytes} bytes in {seconds:.0f} s; at least {self._limits.slowest:.0f} a second are asked for",
                closes=True,
            )
