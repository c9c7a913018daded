"""A web server that holds a few files: ranges, ETags, and the lists of Google Cloud Storage and Azure."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

CHANGED = "Wed, 21 Oct 2015 07:28:00 GMT"


class ObjectServer(ThreadingHTTPServer):
    """The server, in a thread of this process.

    Attributes:
        files: content, by path without the first slash.
        conditions: whether `If-Match` is understood.
        etags: whether files have any; otherwise they have the time of their change.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.conditions = self.etags = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server, url = cast("ObjectServer", self.server), urlsplit(self.path)
        query, path = parse_qs(url.query), unquote(url.path[1:])
        if query.get("comp") == ["list"]:
            self._send(200, _azure_list(server.files, path, query.get("prefix", [""])[0]))
            return
        if "list-type" in query:
            self._send(200, _google_list(server.files, path, query.get("prefix", [""])[0]))
            return
        if path not in server.files:
            self._send(404, b"")
            return
        content = server.files[path]
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        headers = {"ETag": etag} if server.etags else {}
        if server.conditions and self.headers.get("If-Match", etag) != etag:
            self._send(412, b"")
        elif asked := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            part = content[int(asked[1]) : int(asked[2]) + 1]
            where = f"bytes {asked[1]}-{int(asked[1]) + len(part) - 1}/{len(content)}"
            self._send(206, part, {"Content-Range": where, **headers})
        else:
            self._send(200, content, headers)

    do_HEAD = do_GET

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in {"Last-Modified": CHANGED, "Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def _google_list(files: dict[str, bytes], bucket: str, prefix: str) -> bytes:
    contents = "".join(
        f"<Contents><Key>{escape(path.removeprefix(bucket + '/'))}</Key><LastModified>2015-10-21T07:28:00.000Z"
        f'</LastModified><ETag>"{hashlib.md5(content).hexdigest()}"</ETag><Size>{len(content)}</Size></Contents>'
        for path, content in files.items()
        if path.startswith(f"{bucket}/{prefix}")
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()


def _azure_list(files: dict[str, bytes], container: str, prefix: str) -> bytes:
    blobs = "".join(
        f"<Blob><Name>{escape(path.removeprefix(container + '/'))}</Name><Properties><Last-Modified>{CHANGED}"
        f'</Last-Modified><Content-Type>application/x-tar</Content-Type><Etag>"{hashlib.md5(content).hexdigest()}"</Etag>'
        f"<Content-Length>{len(content)}</Content-Length></Properties></Blob>"
        for path, content in files.items()
        if path.startswith(f"{container}/{prefix}")
    )
    return f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>".encode()


@contextlib.contextmanager
def object_server() -> Iterator[ObjectServer]:
    with ObjectServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
