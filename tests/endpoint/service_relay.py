"""Stands between a client and the SageMaker API of `headrace serve`, and plays what the endpoint itself never does.

Full regions, throttling, an answer that is lost on its way: each request of an operation takes the next deed of its
list; without one it passes.
"""

from __future__ import annotations

import http.client
import http.server
import json
import threading
import time
from typing import Any

THROTTLED = "throttled"
"""The request is refused with ThrottlingException."""
LOST = "lost"
"""The request passes, and the connection breaks before its answer."""
FULL = "full"
"""The job is accepted, and fails with CapacityError; the endpoint never hears of it."""
LATE = "late"
"""The request passes, and its answer waits until the client has given up."""
TWICE = "twice"
"""The request passes two times, as one that a network repeats; the client gets the second answer."""
FORGETS = "forgets"
"""The answer is that there is no such job."""
QUOTA = "quota"
"""The request is refused with ResourceLimitExceeded."""
LOSES_MODEL = "loses the model"
"""The job is accepted and runs; when it is Completed, the service says that an error of its own has failed it."""
CAPACITY = "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different type."


class Relay(http.server.ThreadingHTTPServer):
    """A relay in front of an endpoint.

    Args:
        port: of the endpoint.
        deeds: what happens to requests, by operation, in their order.

    Attributes:
        asked: operations with the name of their job, in order.
    """

    daemon_threads = True

    def __init__(self, port: int, **deeds: list[str]) -> None:
        self.target = port
        self.deeds = deeds
        self.asked: list[tuple[str, str]] = []
        self.full: dict[str, dict[str, Any]] = {}
        self.losing: set[str] = set()
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def created(self) -> list[str]:
        """Names of the jobs that a client wanted to create, in order."""
        return [name for operation, name in self.asked if operation == "CreateTrainingJob"]

    def __enter__(self) -> Relay:
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Relay
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        operation, request = self.headers["X-Amz-Target"].partition(".")[2], json.loads(body)
        name = request.get("TrainingJobName", "")
        with self.server.lock:
            self.server.asked.append((operation, name))
            deeds = self.server.deeds.get(operation, [])
            deed = deeds.pop(0) if deeds else ""
        if deed == THROTTLED:
            self._answer(400, {"__type": "ThrottlingException", "message": "Rate exceeded"})
        elif deed == QUOTA:
            self._answer(400, {"__type": "ResourceLimitExceeded", "message": "The limit is 0 Instances"})
        elif deed == FORGETS:
            self._answer(400, {"__type": "ValidationException", "message": "Requested resource not found."})
        elif deed == FULL:
            self.server.full[name] = request
            self._answer(200, {"TrainingJobArn": f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{name}"})
        elif deed == LOSES_MODEL:
            self.server.losing.add(name)
            self._pass_on(body)
        elif name in self.server.full:
            self._of_full_job(operation, name)
        else:
            self._pass_on(body, deed)

    def _of_full_job(self, operation: str, name: str) -> None:
        if operation == "StopTrainingJob":
            words = "The request was rejected because the training job is in status Failed."
            self._answer(400, {"__type": "ValidationException", "message": words})
            return
        now = time.time()
        end = {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "FailureReason": CAPACITY}
        times = {"CreationTime": now, "LastModifiedTime": now, "TrainingEndTime": now}
        arn = f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{name}"
        self._answer(200, {**self.server.full[name], **end, **times, "TrainingJobArn": arn})

    def _pass_on(self, body: bytes, deed: str = "") -> None:
        for _ in range(2 if deed == TWICE else 1):
            connection = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=60)
            try:
                connection.request("POST", self.path, body, dict(self.headers.items()))
                answer = connection.getresponse()
                data = answer.read()
            finally:
                connection.close()
        if deed == LATE:
            assert self.connection.recv(1) == b"", "the client waits no longer, and asks on another connection"
        if deed in (LOST, LATE):
            self.close_connection = True
            return
        name = json.loads(body).get("TrainingJobName")
        if name in self.server.losing and b'"Completed"' in data:
            reason = "InternalServerError: We encountered an internal error. Please try again."
            failed = {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "FailureReason": reason}
            data = json.dumps({**json.loads(data), **failed}).encode()
        self._answer(answer.status, data)

    def _answer(self, status: int, data: object) -> None:
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing is written."""
