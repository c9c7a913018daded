"""Measures how input channels come to a host: CPU seconds and wall seconds, beside the plain way.

    python bench/channels.py [--files 2000] [--bytes 500000] [--repeats 3] [--folder DIR] [--out FILE]

local   `stage` of a sharded channel and of a manifest (links), and a plain folder, beside `cp -r`
s3      `stage` of a File channel from a small static server of this file, beside a bare parallel copy with s3fs:
        ``S3FileSystem().get(keys, paths, batch_size=8)``, no size check, no rename, no listing kept
pipe    `serve_channels` of the same data, read by `cat`

CPU seconds are user and system time of the measured process and its children (RUSAGE_CHILDREN), so what the server and
the kernel's writeback do does not count. Variants alternate; the median of the repeats is what the ratio is made of.
Needs headrace[s3] and s3fs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from headrace.instance.channels.stage_orders import ChannelOrder, StageOrder, write_orders

SERVER = """
import hashlib, os, sys, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
folder = sys.argv[1]
names = sorted(os.listdir(folder))
sizes = {name: os.path.getsize(os.path.join(folder, name)) for name in names}
entry = "<Contents><Key>data/{}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
entry += "<ETag>&quot;{}&quot;</ETag><Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>"

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_HEAD(self): self.do_GET()
    def do_GET(self):
        path, _, query = self.path.partition("?")
        parts = path.strip("/").split("/", 1)
        name = parts[1].removeprefix("data/") if len(parts) > 1 and parts[1] else ""
        if not name:
            asked = urllib.parse.parse_qs(query)
            after = asked.get("continuation-token", [""])[0]
            page = [each for each in names if each > after][:1000]
            more = bool(page) and page[-1] != names[-1]
            body = "<?xml version='1.0'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
            body += f"<Name>bench</Name><Prefix>data/</Prefix><KeyCount>{len(page)}</KeyCount><MaxKeys>1000</MaxKeys>"
            body += f"<IsTruncated>{str(more).lower()}</IsTruncated>"
            body += f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if more else ""
            body += "".join(entry.format(each, each, sizes[each]) for each in page) + "</ListBucketResult>"
            data = body.encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        first, last = 0, sizes[name] - 1
        asked = self.headers.get("Range")
        if asked:
            first, last = (int(part) for part in asked.removeprefix("bytes=").split("-"))
            last = min(last, sizes[name] - 1)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{sizes[name]}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", f'"{name}"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        if self.command == "GET":
            self.wfile.flush()
            with open(os.path.join(folder, name), "rb") as file:
                os.sendfile(self.connection.fileno(), file.fileno(), first, last + 1 - first)

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""

S3FS = """
import sys, s3fs
target = sys.argv[1]
system = s3fs.S3FileSystem(client_kwargs={"region_name": "us-east-1"})
keys = system.find("bench/data/")
system.get(keys, [f"{target}/{key.rsplit('/', 1)[1]}" for key in keys], batch_size=8)
"""


def measured(command: list[str], **options: object) -> tuple[float, float]:
    """Runs a command. Returns (CPU seconds, wall seconds)."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, **options)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


class Bench:
    """One folder of data and one server of it."""

    def __init__(self, folder: Path, files: int, size: int) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir()
        block = os.urandom(size)
        for number in range(files):
            (self.data / f"part-{number:06}").write_bytes(block)
        self.server = subprocess.Popen([sys.executable, "-c", SERVER, str(self.data)], stdout=subprocess.PIPE)
        assert self.server.stdout is not None
        port = int(self.server.stdout.readline())
        self.environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        (folder / "m.json").write_text(
            json.dumps([{"prefix": f"{self.data}/"}, *sorted(path.name for path in self.data.iterdir())])
        )

    def fresh(self) -> Path:
        target = self.folder / "target"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        os.sync()
        return target

    def copied(self) -> tuple[float, float]:
        return measured(["cp", "-r", str(self.data), str(self.fresh() / "copy")])

    def s3fs(self) -> tuple[float, float]:
        return measured([sys.executable, "-c", S3FS, str(self.fresh())], env=self.environment)

    def staged(self, **channel: object) -> tuple[float, float]:
        run = self.order(**channel)
        return measured([sys.executable, "-m", "headrace.hosting.helpers.stage", str(run)], env=self.environment)

    def order(self, hosts: int = 2, **channel: object) -> Path:
        run = self.fresh()
        names = tuple(f"algo-{number + 1}" for number in range(hosts))
        bases = {name: str(run / name) for name in names}
        for base in bases.values():
            Path(base, "input/data").mkdir(parents=True)
        order = ChannelOrder(**{"name": "data", "uri": str(self.data), "hosts": names} | channel)
        write_orders(StageOrder("bench", str(run / "channels"), bases, (order,)), run)
        return run

    def piped(self, uri: str) -> tuple[float, float]:
        run = self.order(1, uri=uri, input_mode="Pipe")
        subprocess.run(
            [sys.executable, "-m", "headrace.hosting.helpers.stage", str(run)], env=self.environment, check=True
        )
        script = """
import subprocess, sys
server = subprocess.Popen([sys.executable, "-m", "headrace.hosting.helpers.serve_channels", sys.argv[1]],
                          stdout=subprocess.PIPE)
server.stdout.readline()
with open(sys.argv[1] + "/algo-1/input/data/data_0", "rb", buffering=0) as pipe:
    buffer, total = bytearray(1 << 20), 0
    while size := pipe.readinto(buffer):
        total += size
assert total == int(sys.argv[2]), total
server.terminate()
server.wait()
"""
        total = sum(path.stat().st_size for path in self.data.iterdir())
        return measured([sys.executable, "-c", script, str(run), str(total)], env=self.environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--bytes", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the data are made; by default the temporary folder")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-channels-", dir=given.folder) as name:
        bench = Bench(Path(name).resolve(), given.files, given.bytes)
        variants: dict[str, Callable[[], tuple[float, float]]] = {
            "cp -r": bench.copied,
            "local sharded": lambda: bench.staged(distribution="ShardedByS3Key"),
            "local manifest": lambda: bench.staged(data_type="ManifestFile", uri=str(bench.folder / "m.json")),
            "s3fs": bench.s3fs,
            "s3 replicated": lambda: bench.staged(uri="s3://bench/data/"),
            "s3 sharded": lambda: bench.staged(uri="s3://bench/data/", distribution="ShardedByS3Key"),
            "pipe local": lambda: bench.piped(str(bench.data)),
            "pipe s3": lambda: bench.piped("s3://bench/data/"),
        }
        raw: dict[str, list[tuple[float, float]]] = {variant: [] for variant in variants}
        try:
            for _ in range(given.repeats):
                for variant, run in variants.items():
                    raw[variant].append(run())
        finally:
            bench.server.kill()
            bench.server.wait()
    cpu = {variant: statistics.median(cpu for cpu, _ in runs) for variant, runs in raw.items()}
    wall = {variant: statistics.median(wall for _, wall in runs) for variant, runs in raw.items()}
    print(f"{given.files} files of {given.bytes} bytes, median of {given.repeats}")
    print(f"{'':16}{'CPU s':>8}{'wall s':>8}")
    for variant in variants:
        print(f"{variant:16}{cpu[variant]:8.2f}{wall[variant]:8.2f}")
    print(f"local sharded, speed over cp -r (at least 0.9): {wall['cp -r'] / wall['local sharded']:.2f}")
    print(f"s3 replicated, CPU over s3fs (at most 1.3): {cpu['s3 replicated'] / cpu['s3fs']:.2f}")
    print(f"s3 sharded, CPU over s3fs (at most 1.3): {cpu['s3 sharded'] / cpu['s3fs']:.2f}")
    if given.out:
        figures = {
            "files": given.files,
            "bytes": given.bytes,
            "cpus": os.cpu_count(),
            "date": time.strftime("%Y-%m-%d"),
        }
        given.out.write_text(json.dumps({**figures, "cpu_and_wall_seconds": raw}, indent=1) + "\n")


if __name__ == "__main__":
    main()
