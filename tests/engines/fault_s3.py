"""A bucket that can be told to misbehave: as much of S3 as filling a channel asks for, in threads of the player.

Objects are `/bucket/train/N`. An answer with an object's content stands still after `hold` bytes until `let` is called,
and goes on as that says: `cut` breaks it off, so that what was read must be asked for again.
"""

from __future__ import annotations

import contextlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from fault_play import Play

PATIENCE = 60.0
PIECE = 1 << 16


class Bucket(ThreadingHTTPServer):
    """The server.

    Args:
        objects: how many there are.
        size: bytes of each.
        hold: bytes of an answer after which it stands still.

    Attributes:
        held: an answer stands still.
    """

    daemon_threads = True

    def __init__(self, objects: int, size: int, hold: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects = {f"train/{number}": os.urandom(size) for number in range(objects)}
        self.version = 1
        self.hold = hold
        self.held = threading.Event()
        self.opened = threading.Event()
        self.cut = False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def let(self, cut: bool) -> None:
        """Lets answers go on."""
        self.cut = cut
        self.opened.set()

    def handle_error(self, *_: object) -> None:
        """A client that breaks off is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, with_content: bool) -> None:
        bucket = cast("Bucket", self.server)
        asked = urlsplit(self.path)
        key = asked.path.removeprefix("/bucket").lstrip("/")
        if not key:
            self._send(200, self._listing(bucket).encode(), with_content)
        elif key not in bucket.objects:
            self._send(404, b"<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>", with_content)
        elif self.headers.get("If-Match", self._etag(bucket)) != self._etag(bucket):
            self._send(412, b"<Error><Code>PreconditionFailed</Code><Message>no</Message></Error>", with_content)
        else:
            data = bucket.objects[key]
            wanted = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
            begin = int(wanted[0] or 0)
            end = int(wanted[2]) + 1 if wanted[2] else len(data)
            more = {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"} if wanted[1] else {}
            self._send(206 if more else 200, data[begin:end], with_content, more, slow=True)

    @staticmethod
    def _etag(bucket: Bucket) -> str:
        return f'"{bucket.version:032x}"'

    def _listing(self, bucket: Bucket) -> str:
        entries = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(data)}</Size><ETag>{self._etag(bucket)}</ETag></Contents>"
            for key, data in sorted(bucket.objects.items())
        )
        return (
            f"<ListBucketResult><Name>bucket</Name><KeyCount>{len(bucket.objects)}</KeyCount>"
            f"<IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
        )

    def _send(
        self, code: int, body: bytes, with_content: bool, more: dict[str, str] | None = None, slow: bool = False
    ) -> None:
        bucket = cast("Bucket", self.server)
        self.send_response(code)
        headers = {"Content-Length": str(len(body)), "ETag": self._etag(bucket), **(more or {})}
        headers |= {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            for begin in range(0, len(body) if with_content else 0, PIECE):
                if slow and begin + PIECE > bucket.hold and not bucket.opened.is_set():
                    bucket.held.set()
                    bucket.opened.wait(PATIENCE)
                    if bucket.cut:
                        self.close_connection = True
                        return
                self.wfile.write(body[begin : begin + PIECE])


def serve(play: Play, objects: int = 4, size: int = 2_000_000) -> None:
    """Starts a bucket for a row, in whose environment it is then."""
    bucket = Bucket(objects, size, hold=500_000)
    play.bucket = bucket
    play.environment |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{bucket.server_address[1]}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    }


def downloading(play: Play) -> None:
    """The download stands in the middle."""
    play.until(play.bucket.held.is_set, "the download")


def change(play: Play) -> None:
    """All objects get another content, and what was being read breaks off."""
    play.strike()
    play.bucket.version += 1
    play.bucket.let(cut=True)


def vanish(play: Play) -> None:
    """All objects go, and what was being read breaks off."""
    play.strike()
    play.bucket.objects.clear()
    play.bucket.let(cut=True)


def fill_disk(play: Play) -> None:
    """Somebody fills the disk."""
    play.strike()
    descriptor = os.open(play.place / "home" / "filler", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(descriptor, bytes(4096))
    os.close(descriptor)


def go_on(play: Play) -> None:
    """The download goes on."""
    play.bucket.let(cut=False)
