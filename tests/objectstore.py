"""An S3 server of the tests' own (moto), in a process of its own, and what a user has in his environment for it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.instance.s3 import share_models
from needs import require
from patience import allowed

MOTO = str(Path(__file__).with_name("moto_server.py"))
LAST_LINES = 20  # of a server's log that a failure shows
PAGE = 100  # objects that an answer lists; S3 lists 1,000


@dataclass(frozen=True)
class ObjectStore:
    """A running server and a bucket in it.

    Attributes:
        endpoint: URL of the server.
        bucket: name of a bucket that only this test knows.
        client: botocore's client, to look behind headrace's back.
    """

    endpoint: str
    bucket: str
    client: Any

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=key, Body=data)

    def get(self, key: str) -> bytes:
        return self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def listed(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def uri(self, key: str = "") -> str:
        return f"s3://{self.bucket}/{key}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(frozen=True)
class Server:
    """A process that serves the session."""

    process: subprocess.Popen[bytes]
    log: Path

    def why_dead(self) -> str:
        """Returns how it ended, with its last lines; nothing while it runs."""
        if (code := self.process.poll()) is None:
            return ""
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return "\n  ".join([f"the S3 server of the session (process {self.process.pid}) has ended, {how}:", *lines])


SERVERS: list[Server] = []  # the session's own


def assert_serving(when: str) -> None:
    """Fails if the session's server has ended: what needs it would fail with errors that do not say why."""
    for server in SERVERS:
        if why := server.why_dead():
            raise AssertionError(f"{when}: {why}")


@contextlib.contextmanager
def stays_serving() -> Iterator[None]:
    """Fails if the session's server ends within the block; the test in it is the one to look at."""
    before = [server for server in SERVERS if not server.why_dead()]
    yield
    if any(server.why_dead() for server in before):
        assert_serving("during this test")


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server that lives as long as the session."""
    require("moto")
    port = free_port()
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [sys.executable, MOTO, "-H", "127.0.0.1", "-p", str(port)], stdout=file, stderr=file,
            env=os.environ | {"MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE)},
        )  # fmt: skip
    running = Server(server, log)
    SERVERS.append(running)
    try:
        deadline = time.monotonic() + allowed(60)
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as probe:
                if probe.getsockname() != probe.getpeername():  # where nobody listens a socket may meet itself
                    break
            if time.monotonic() > deadline:
                raise AssertionError(f"the S3 server does not listen:\n{log.read_text()}")
            assert_serving("at its start")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        SERVERS.remove(running)
        server.kill()
        server.wait()


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A bucket of the test's own; the environment is a user's who works with that server."""
    assert_serving("before this test")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    require("botocore")
    import botocore.session

    core = botocore.session.get_session()
    share_models(core)  # a fifth of a client's cost, several hundred times
    client = core.create_client("s3", region_name="us-east-1")
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)
    yield ObjectStore(s3_endpoint, bucket, client)
    client.close()
