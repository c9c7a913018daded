"""A proxy before the tests' S3 server that counts requests, answers late, with errors, or keeps the answer back."""

from __future__ import annotations

import contextlib
import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast
from urllib.parse import urlsplit


class FlakyS3(ThreadingHTTPServer):
    """The proxy. It runs in a thread of this process.

    Args:
        endpoint: of the server behind it.

    Attributes:
        requests: how many came, by method.
        errors: share of the requests that are answered with an error, half of them after they were carried out.
        cuts: share of the answers with contents that break off in the middle.
        delay: seconds before an answer, at most.
        down: every request is answered with an error.
        hung: no request is answered.
        error: status and code of the errors.
        signed: the `Authorization` of the last request.
        busy: requests that have come and are not answered yet.
    """

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = urlsplit(endpoint).netloc
        self.requests: Counter[str] = Counter()
        self.errors = 0.0
        self.cuts = 0.0
        self.delay = 0.0
        self.down = False
        self.hung = False
        self.error = (500, "InternalError")
        self.busy = 0
        self.signed = ""
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.chance = random.Random(7)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """A client that is killed is no error."""


class _Handler(BaseHTTPRequestHandler):
    def _forward(self) -> None:
        proxy = cast("FlakyS3", self.server)
        with proxy.lock:
            proxy.busy += 1
        try:
            self._answer(proxy)
        finally:
            with proxy.lock:
                proxy.busy -= 1

    def _answer(self, proxy: FlakyS3) -> None:
        proxy.requests[self.command] += 1
        proxy.signed = self.headers.get("Authorization", "")
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        if len(body) < size:  # the client was killed: such a request is none
            return
        if proxy.hung:
            proxy.ended.wait()
            return
        fails = proxy.down or proxy.chance.random() < proxy.errors
        time.sleep(proxy.chance.random() * proxy.delay)
        status, code = proxy.error
        headers, data = [], f"<Error><Code>{code}</Code><Message>flaky</Message></Error>".encode()
        length = str(len(data))
        if not fails or (not proxy.down and proxy.chance.random() < 0.5):
            with contextlib.closing(http.client.HTTPConnection(proxy.behind, timeout=30)) as connection:
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                content = answer.read()
                if not fails:
                    status, headers, data = answer.status, answer.getheaders(), content
                    length = answer.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(data))
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"content-length", "connection", "transfer-encoding"}:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if len(data) > 1 and proxy.chance.random() < proxy.cuts:
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _forward

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def flaky(endpoint: str) -> Iterator[FlakyS3]:
    """A proxy before a server, for the block."""
    with FlakyS3(endpoint) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield proxy
        finally:
            proxy.ended.set()
            proxy.shutdown()
            thread.join()
