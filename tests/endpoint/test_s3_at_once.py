"""Two operations of S3 at the same time: one is stopped in its middle, and the other is done there.

What both answer, and what is there afterwards, must be what one of the two orders leaves, which the same server plays
one after the other. Only an upload that is being completed may refuse the other.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from effort import SOAK
from s3_server import s3_serving
from wire_client import Wire, until

from headrace.endpoint.s3 import multipart_uploads, object_operations, upload_body
from headrace.endpoint.s3.multipart_uploads import MultipartUploads
from headrace.endpoint.s3.object_store import OWN, ObjectStore
from patience import allowed

SIZE = 8192
BODIES = {name: name.encode() * (SIZE // len(name)) for name in ("put1", "old1", "src1", "part", "more")}
BLOCKED_SECONDS = 0.1  # how long the second may need until it counts as waiting for the first
SHOWN = re.compile(rb"<(Code|Key|ETag|Size|PartNumber)>([^<]*)<")


@dataclass(frozen=True)
class Request:
    """A request: method, what follows the bucket's name, headers and body."""

    method: str
    target: str
    headers: str = ""
    body: bytes = b""


def etag(body: bytes) -> str:
    return hashlib.md5(body).hexdigest()


LIST = f"<Part><PartNumber>1</PartNumber><ETag>{etag(BODIES['part'])}</ETag></Part>"
DONE = f"<CompleteMultipartUpload>{LIST}</CompleteMultipartUpload>".encode()
OPERATIONS: dict[str, list[Request]] = {
    "put": [Request("PUT", "/k", "", BODIES["put1"])],
    "part again": [Request("PUT", "/k?partNumber=1&uploadId={id}", "", BODIES["more"])],
    "next part": [Request("PUT", "/k?partNumber=2&uploadId={id}", "", BODIES["more"])],
    "copied part": [Request("PUT", "/k?partNumber=2&uploadId={id}", "\nx-amz-copy-source: /source/k")],
    "complete": [Request("POST", "/k?uploadId={id}", "", DONE)],
    "abort": [Request("DELETE", "/k?uploadId={id}")],
    "begin": [Request("POST", "/k?uploads")],
    "copy to": [Request("PUT", "/k", "\nx-amz-copy-source: /source/k")],
    "copy from": [Request("PUT", "/k2", "\nx-amz-copy-source: /{bucket}/k")],
    "get": [Request("GET", "/k")],
    "delete": [Request("DELETE", "/k")],
    "delete bucket": [Request("DELETE", "")],
    "bucket anew": [Request("DELETE", ""), Request("PUT", "")],
    "list": [Request("GET", "?list-type=2")],
    "list uploads": [Request("GET", "?uploads")],
    "list parts": [Request("GET", "/k?uploadId={id}")],
    "region": [Request("GET", "?location")],
}
MIDDLES: dict[str, tuple[object, str]] = {
    "copied part": (multipart_uploads, "copy_bytes"),
    "complete": (multipart_uploads, "_check_stated"),
    "begin": (ObjectStore, "check_place"),
    "copy to": (object_operations, "copy_bytes"),
    "copy from": (object_operations, "copy_bytes"),
    "delete bucket": (ObjectStore, "delete_bucket"),
    "list": (ObjectStore, "_rows"),
    "list parts": (MultipartUploads, "_find"),
    "region": (ObjectStore, "bucket_path"),
}
"""After which call an operation is stopped. Those that are not here, and have a body, are stopped in its middle."""
UNDER_LOCK = ("begin", "list", "list parts", "region")  # where these are stopped, others wait for them
FIRSTS = [*MIDDLES, "put", "part again", "next part"]
SECONDS = [*OPERATIONS] if SOAK else ["complete", "bucket anew"]


class Played:
    """A server, on which rows are played, each with a bucket of its own."""

    def __init__(self, root: Path, port: int) -> None:
        self.root, self.port, self.buckets = root, port, 0
        self.ask("source", Request("PUT", ""))
        self.ask("source", Request("PUT", "/k", "", BODIES["src1"]))

    def ask(self, bucket: str, request: Request, upload: str = "", middle: Callable[[], None] | None = None) -> Any:
        """Sends a request; with `middle` that is called when three quarters of the body have gone."""
        with Wire(self.port) as wire:
            target = request.target.format(id=upload)
            head = f"{request.method} /{bucket}{target} HTTP/1.1\nHost: h\nContent-Length: {len(request.body)}"
            head += request.headers.format(bucket=bucket) + "\n\n"
            sent = SIZE * 3 // 4 if middle else len(request.body)
            wire.send(head.replace("\n", "\r\n").encode() + request.body[:sent])
            if middle:
                middle()
            wire.send(request.body[sent:])
            return wire.reply()

    def do(self, bucket: str, name: str, upload: str, middle: Callable[[], None] | None = None) -> list[Any]:
        """Does an operation. Returns what its answers tell."""
        answers = []
        for request in OPERATIONS[name]:
            status, headers, body = self.ask(bucket, request, upload, middle)
            body = body.replace(bucket.encode(), b"BUCKET")
            shown = [(tag, text) for tag, text in SHOWN.findall(body) if not (name == "list uploads" and status == 200)]
            answers.append((status, headers.get("etag"), etag(body) if (name, status) == ("get", 200) else shown))
        return answers

    def open_row(self, *, there: bool) -> tuple[str, str]:
        """Makes a bucket with an upload that has one part, and an object if `there`. Returns bucket and upload."""
        self.buckets += 1
        bucket = f"bucket-{self.buckets}"
        self.ask(bucket, Request("PUT", ""))
        if there:
            self.ask(bucket, Request("PUT", "/k", "", BODIES["old1"]))
        begun = self.ask(bucket, Request("POST", "/k?uploads"))[2]
        upload = begun.partition(b"<UploadId>")[2].partition(b"<")[0].decode()
        self.ask(bucket, Request("PUT", "/k?partNumber=1&uploadId={id}", "", BODIES["part"]), upload)
        return bucket, upload

    def left(self, bucket: str, upload: str) -> Any:
        """What is there afterwards: objects with their bytes, uploads, and parts of the row's upload."""
        found = self.do(bucket, "list", upload), self.do(bucket, "list parts", upload)
        uploads = self.ask(bucket, Request("GET", "?uploads"))[2]
        ids = re.findall(rb"<UploadId>([^<]*)<", uploads)
        folder = self.root / bucket
        files = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else None
        self.ask(bucket, Request("DELETE", "/k"))
        self.ask(bucket, Request("DELETE", "/k2"))
        for identifier in ids:
            self.ask(bucket, OPERATIONS["abort"][0], identifier.decode())
        self.ask(bucket, Request("DELETE", ""))
        return found, len(ids), files

    def own(self) -> list[Path]:
        return [path for folder in ("incoming", "uploads") for path in (self.root / OWN / folder).rglob("*")]

    def bytes_there(self) -> int:
        total = 0
        for path in self.own():
            if path.is_file():
                total += path.stat().st_size
        return total


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    root = tmp_path_factory.mktemp("objects")
    with pytest.MonkeyPatch.context() as patch, s3_serving(root) as (server, _):
        patch.setattr(upload_body, "_WRITTEN_BYTES", 1024)  # so that the middle of a body is on disk
        yield Played(root, server.port)


@contextmanager
def stopped(place: tuple[object, str], reached: threading.Event, go: threading.Event) -> Iterator[None]:
    """Stops the first that calls a function behind it, until `go`."""
    owner, name = place
    function = getattr(owner, name)

    def stop(*args: Any, **named: Any) -> Any:
        answer = function(*args, **named)
        if not reached.is_set():
            reached.set()
            assert go.wait(allowed(20.0))
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, stop)
        yield


@cache
def in_order(played: Played, names: tuple[str, ...], *, there: bool) -> tuple[list[Any], Any]:
    """Does operations one after the other. Returns their answers, and what is left."""
    bucket, upload = played.open_row(there=there)
    answers = [played.do(bucket, name, upload) for name in names]
    return answers, played.left(bucket, upload)


def at_once(played: Played, first: str, second: str, *, there: bool) -> tuple[list[Any], Any]:
    """Does the second in the middle of the first. Returns both answers, and what is left."""
    bucket, upload = played.open_row(there=there)
    before = played.bytes_there()
    reached, go = threading.Event(), threading.Event()
    answers: dict[str, Any] = {}
    middle: Callable[[], None] | None = None
    if first not in MIDDLES:

        def middle() -> None:
            until(lambda: played.bytes_there() > before)
            reached.set()
            assert go.wait(allowed(20.0))

    one = threading.Thread(target=lambda: answers.update(first=played.do(bucket, first, upload, middle)))
    two = threading.Thread(target=lambda: answers.update(second=played.do(bucket, second, upload)))
    place = MIDDLES.get(first)
    with stopped(place, reached, go) if place else pytest.MonkeyPatch.context():
        one.start()
        until(lambda: reached.is_set() or not one.is_alive())
        two.start()
        two.join(BLOCKED_SECONDS if first in UNDER_LOCK else allowed(20.0))
        go.set()
        one.join()
        two.join()
    return [answers["first"], answers["second"]], played.left(bucket, upload)


def is_refused(answers: list[Any]) -> bool:
    return any((b"Code", b"OperationAborted") in shown for _, _, shown in answers if isinstance(shown, list))


@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("first", FIRSTS)
def test_two_operations_at_the_same_time_leave_what_one_of_their_orders_leaves(
    first: str, second: str, played: Played
) -> None:
    there = not any("bucket" in name for name in (first, second))  # a bucket with an object is not deleted
    answers, left = at_once(played, first, second, there=there)
    assert all(status < 500 for answer in answers for status, _, _ in answer), answers
    one_two, after_one_two = in_order(played, (first, second), there=there)
    two_one, after_two_one = in_order(played, (second, first), there=there)
    orders = [(one_two, after_one_two), (two_one[::-1], after_two_one)]
    if "complete" in (first, second) and is_refused(answers[1]):
        alone, after = in_order(played, (first,), there=there)
        orders = [([*alone, answers[1]], after)]
    assert (answers, left) in orders
    assert played.own() == []
