"""How long the first `headrace fetch` of a long run takes: an S3 server (moto) on this machine has the run's record.

    python -m bench.day_record 1200 28800 --output bench/results/day_record.jsonl

A record of N segments is made by headrace's own writer, as an idle job of some hosts has them: one every 3 s, so
28,800 are a day. It is read twice, each time into a new folder: as it is, and without its bundles, as an older headrace
reads it. Requests are counted by their kind, in the client. `delay` is added to each: the way to a real bucket.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

PORT = 5998
BUCKET = "bench"
LINE = b'{"metric":"host","t":1795201261.0,"cpu":12.5,"cores":4,"rss":104857600,"processes":3,"sent":1048576}\n'
USER = {
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORT}",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def serve(segments: int, hosts: int) -> None:
    """Fills a bucket with a record and serves it until standard input ends."""
    from moto.moto_api._internal.models import moto_api_backend  # noqa: F401  (moto's own order of imports)
    from moto.s3.models import s3_backends
    from moto.server import ThreadedMotoServer

    from headrace.runs import Stream, create_run
    from headrace.runs.segment_writer import SegmentWriter

    backend = s3_backends["123456789012"]["aws"]
    backend.create_bucket(BUCKET, "us-east-1")

    class Direct:
        def names(self, uri: str, after: str = "") -> Sequence[str]:
            return ()

        def folders(self, uri: str, beginning: str = "") -> Sequence[str]:
            return ()

        def read(self, uri: str) -> bytes:
            raise FileNotFoundError(uri)

        def write(self, data: bytes, uri: str) -> None:
            backend.put_object(BUCKET, uri.removeprefix(f"s3://{BUCKET}/"), data)

    with tempfile.TemporaryDirectory() as folder:
        paths = create_run("day", runs=Path(folder))
        writer = SegmentWriter(paths, Direct(), f"s3://{BUCKET}/runs", "engine", paths.root / "stored")
        files = [paths.metrics(Stream("dnn", f"algo-{number}", "host")) for number in range(1, hosts + 1)]
        for file in files:
            file.parent.mkdir(parents=True)
        for _ in range(segments):
            for file in files:
                with file.open("ab") as opened:
                    opened.write(3 * LINE)
            writer.store()
    server = ThreadedMotoServer("127.0.0.1", PORT, verbose=False)
    server.start()
    print(paths.id, flush=True)
    sys.stdin.read()
    server.stop()


def fetch(run_id: str, bundled: bool, delay: float) -> dict[str, float | int | bool]:
    """Fetches the record into a new folder. Returns what that took."""
    from headrace.instance.storage import Store
    from headrace.runs.segment_reader import RecordCopy, open_copy
    from headrace.runs.segments import BUNDLES, find_record

    requests: Counter[str] = Counter()

    class Counting(Store):
        def names(self, uri: str, after: str = "") -> Sequence[str]:
            if f"/{BUNDLES}/" in uri and not bundled:
                return []
            found = super().names(uri, after)
            requests["list"] += 1 + len(found) // 1000
            time.sleep(delay * (1 + len(found) // 1000))
            return found

        def read(self, uri: str) -> bytes:
            requests["get"] += 1
            time.sleep(delay)
            return super().read(uri)

    folder = Path(tempfile.mkdtemp(prefix="headrace-day-"))
    try:
        with Counting() as store:
            began, cpu = time.monotonic(), _cpu()
            copy = RecordCopy(store, open_copy(store, *find_record(store, f"s3://{BUCKET}/runs/{run_id}"), folder))
            copy.update()
            seconds, spent = time.monotonic() - began, _cpu() - cpu
    finally:
        shutil.rmtree(folder)
    return {
        "bundles": bundled,
        "delay_ms": 1000 * delay,
        "segments": copy.segments,
        "megabytes": round(copy.bytes / 1e6, 1),
        "gets": requests["get"],
        "lists": requests["list"],
        "seconds": round(seconds, 1),
        "cpu_s": round(spent, 1),
    }


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="bench.day_record", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("segments", type=int, nargs="+", help="how many segments a record has; 28800 are a day")
    parser.add_argument("--hosts", type=int, default=4, help="hosts of the job (default 4)")
    parser.add_argument("--delay", type=float, default=0.02, help="seconds added to each request (default 0.02)")
    parser.add_argument("--output", type=Path, help="file to which the raw data is appended as JSON lines")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.segments[0], options.hosts)
        return
    os.environ.update(USER)
    machine = {"cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version()}
    for segments in options.segments:
        words = [sys.executable, "-m", "bench.day_record", str(segments), "--hosts", str(options.hosts), "--serve"]
        with (
            tempfile.TemporaryFile() as log,
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as server,
        ):
            assert server.stdin is not None
            assert server.stdout is not None
            run_id = server.stdout.readline().strip()
            for bundled in (True, False):
                row = fetch(run_id, bundled, options.delay)
                print(json.dumps(row), flush=True)
                if options.output:
                    raw = {
                        "t": round(time.time()),
                        **machine,
                        "load": os.getloadavg()[0],
                        "hosts": options.hosts,
                        **row,
                    }
                    with options.output.open("a") as file:
                        file.write(json.dumps({**raw, "hosts": options.hosts, **row}) + "\n")
            server.stdin.close()


if __name__ == "__main__":
    main()
