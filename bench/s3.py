"""Measures the S3 face of `headrace serve`: what it costs to keep and give objects, beside moto's server.

    python bench/s3.py [--megabytes 1024] [--small 300] [--ranges 100] [--peer-megabytes 64] [--folder DIR] [--out FILE]

up      boto3's transfer manager sends one object: parts of 8 MiB, ten threads, its defaults
down    the same the other way
small   PutObject of 100 bytes, one after the other, one connection
ranges  GetObject of 64 KiB each, with If-Match, one after the other
list    100,000 keys of one folder, in pages of 1,000

Server and client are two processes. CPU seconds are the server's, user and system; memory is the most that the server
ever had resident (VmHWM). `--signed` lets the server take the SHA-256 of every upload too, which is what verifying a
signature over the body costs. The store lies on the file system of `--folder`. Needs headrace[serve], boto3 and, for
the peer, moto.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import platform
import random
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil

MIB = 1 << 20
BUCKET = "bench"


def serve(root: Path, *, signed: bool) -> None:
    from headrace.endpoint.http.http_message import HttpReply, HttpRequest, RequestBody
    from headrace.endpoint.http.http_server import HttpServer, listen
    from headrace.endpoint.s3.s3_face import S3Face

    class Hashed(RequestBody):
        """A body of which the SHA-256 is taken."""

        def __init__(self, body: RequestBody) -> None:
            self._body = body
            self._digest = hashlib.sha256()

        @property
        def length(self) -> int | None:
            return self._body.length

        def readinto(self, buffer: memoryview) -> int:
            count = self._body.readinto(buffer)
            self._digest.update(buffer[:count])
            return count

    face = S3Face(root)

    def handle(request: HttpRequest) -> HttpReply:
        return face.handle(dataclasses.replace(request, body=Hashed(request.body)) if signed else request, None)

    server = HttpServer(handle, listen("127.0.0.1", 0))
    server.start()
    print(server.port, flush=True)
    sys.stdin.read()  # until the bench ends
    server.stop()


@contextmanager
def headrace(root: Path, *, signed: bool) -> Iterator[tuple[int, int]]:
    command = [sys.executable, __file__, "--serve", str(root), *(["--signed"] if signed else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def moto() -> Iterator[tuple[int, int]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 60
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.05)
            yield process.pid, port
        finally:
            process.kill()


def client_of(port: int) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3", "us-east-1", endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="bench", aws_secret_access_key="bench",
        config=Config(retries={"total_max_attempts": 1}, max_pool_connections=10, read_timeout=600),
    )  # fmt: skip


class Meter:
    """The server's CPU seconds and memory."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.rows: dict[str, dict[str, float]] = {}

    def measure(self, name: str, work: Callable[[], object], **more: float) -> None:
        before, own, began = self._cpu(), resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        work()
        seconds = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_SELF)
        self.rows[name] = {
            "seconds": round(seconds, 3),
            "server_cpu_seconds": round(self._cpu() - before, 3),
            "client_cpu_seconds": round(after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime, 3),
            "server_peak_mib": round(self._peak(), 1),
            **more,
        }
        print(f"  {name:8}", self.rows[name], flush=True)

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def _peak(self) -> float:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024


def play(pid: int, port: int, folder: Path, args: argparse.Namespace, megabytes: int) -> dict[str, Any]:
    client, meter = client_of(port), Meter(pid)
    client.create_bucket(Bucket=BUCKET)
    source, back = folder / "source", folder / "back"
    meter.measure("idle", lambda: None)
    meter.measure("up", lambda: client.upload_file(str(source), BUCKET, "big"), megabytes=megabytes)
    etag = client.head_object(Bucket=BUCKET, Key="big")["ETag"]
    meter.measure("down", lambda: client.download_file(BUCKET, "big", str(back)), megabytes=megabytes)
    if subprocess.run(["cmp", str(source), str(back)], check=False).returncode:
        raise SystemExit("what came back is not what was sent")
    back.unlink()

    def small() -> None:
        for at in range(args.small):
            client.put_object(Bucket=BUCKET, Key=f"small/{at}", Body=b"x" * 100)

    def ranges() -> None:
        chance = random.Random(1)
        for _ in range(args.ranges):
            at = chance.randrange(megabytes * MIB - 65536)
            part = client.get_object(Bucket=BUCKET, Key="big", Range=f"bytes={at}-{at + 65535}", IfMatch=etag)
            if len(part["Body"].read()) != 65536:
                raise SystemExit("a range of another size")

    meter.measure("small", small, count=args.small)
    meter.measure("ranges", ranges, count=args.ranges)
    return meter.rows


def listing(pid: int, port: int, root: Path) -> dict[str, Any]:
    client, meter = client_of(port), Meter(pid)
    many = root / BUCKET / "many"
    many.mkdir()
    for at in range(100_000):
        (many / f"{at:06}").touch()

    def pages() -> None:
        found = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="many/")
        if sum(page["KeyCount"] for page in found) != 100_000:
            raise SystemExit("keys are missing")

    meter.measure("list", pages, keys=100_000)
    return meter.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--peer-megabytes", type=int, default=64, help="0: no peer")
    parser.add_argument("--small", type=int, default=300)
    parser.add_argument("--ranges", type=int, default=100)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--signed", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve, signed=args.signed)
    folder = Path(tempfile.mkdtemp(prefix="bench-s3-", dir=args.folder))
    result: dict[str, Any] = {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"), "machine": platform.platform(),
        "cpus": os.cpu_count(), "load_before": os.getloadavg(), "python": platform.python_version(), "rows": {},
    }  # fmt: skip
    try:
        for name, megabytes, signed in (
            ("headrace", args.megabytes, args.signed), ("headrace, small", args.peer_megabytes, args.signed),
            ("moto", args.peer_megabytes, False),
        ):  # fmt: skip
            if not megabytes:
                continue
            print(f"{name}: {megabytes} MiB", flush=True)
            with (folder / "source").open("wb") as file:
                for _ in range(megabytes):
                    file.write(os.urandom(MIB))
            with moto() if name == "moto" else headrace(folder / "store", signed=signed) as (pid, port):
                rows = play(pid, port, folder, args, megabytes)
                if name == "headrace":
                    rows |= listing(pid, port, folder / "store")
            result["rows"][name] = {"signed": signed, **rows}
            shutil.rmtree(folder / "store", ignore_errors=True)
    finally:
        shutil.rmtree(folder)
    result["load_after"] = os.getloadavg()
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
