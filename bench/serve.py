"""Measures `headrace serve` as a client sees it: the delay that it adds to a job, its CPU a poll, its S3, its memory.

    python bench/serve.py [--pairs 5] [--polls 200] [--megabytes 1000] [--small 100] [--crowd 10000] [--out FILE]

hello   a job of three hosts that prints a line: bare by `headrace run`, and created by boto3 and described every 50 ms
        until it has ended. Pairs, one after the other, in turn; wall seconds
poll    DescribeTrainingJob and GetLogEvents of a job that has ended, one after the other; the server's CPU a call
up      one object by boto3's transfer manager (8 MiB parts, ten threads); the server's CPU
hashes  the same bytes through SHA-256, MD5 and CRC32 in one thread, just before: what an upload costs at least
write   the same bytes written to a file by the bench, which removes it again, just before: what the file system costs.
        It also takes care that memory of a virtual machine that was never used before is not counted as the server's
down    the same the other way
small   PutObject of 100 bytes with `Expect: 100-continue`, one after the other; wall time each: a server that does not
        answer at once costs a second each

One server for all: a real `headrace serve` in a process of its own. Memory is the most that it ever had resident
(VmHWM), and the pages that it alone has (private).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import platform
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import psutil
from botocore.config import Config
from isal import isal_zlib

BUCKET = "headrace-local"
FIGURES = ("up_cpu_seconds", "hashes_cpu_seconds", "write_cpu_seconds", "down_cpu_seconds", "small_cpu_seconds")
SCRIPT = "print('hello')\n"
GROUP = "/aws/sagemaker/TrainingJobs"
JOB = """job_name: hello
source_dir: {code}
entry_point: train.py
instance_groups:
  - {{name: data, type: ml.c5.xlarge, count: 2}}
  - {{name: dnn, type: ml.m5.xlarge, count: 1}}
"""


class Server:
    """A `headrace serve` of its own home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self.environ["HEADRACE_HOME"] = str(home)
        command = [sys.executable, "-m", "headrace", "serve", "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=self.environ, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("headrace serve:"):
                self.url = line.split()[2]
            if line.startswith("export SAGEMAKER"):
                break
        self._psutil = psutil.Process(self._process.pid)
        keys = json.loads((home / "serve" / "keys.json").read_text())
        self._key = next(key for key in keys if key["holder"] == "user")

    def client(self, service: str) -> Any:
        return boto3.client(
            service, "us-east-1", endpoint_url=self.url, aws_access_key_id=self._key["key_id"],
            aws_secret_access_key=self._key["secret"], config=Config(retries={"total_max_attempts": 1}),
        )  # fmt: skip

    def cpu(self) -> float:
        times = self._psutil.cpu_times()
        return times.user + times.system

    def system(self) -> float:
        return float(self._psutil.cpu_times().system)

    def memory(self) -> dict[str, float]:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        rollup = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text()
        own = sum(int(number) for number in re.findall(r"^Private_\w+:\s+(\d+)", rollup, re.MULTILINE))
        peak = re.search(r"^VmHWM:\s+(\d+)", status, re.MULTILINE)
        assert peak is not None
        return {"peak_mb": round(int(peak[1]) * 1024 / 1e6, 1), "private_mb": round(own * 1024 / 1e6, 1)}

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


def hello(server: Server, pairs: int) -> dict[str, Any]:
    code = server.home / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    job = server.home / "hello.yaml"
    job.write_text(JOB.format(code=code))
    archive = server.home / "buckets" / BUCKET / "sourcedir.tar.gz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo("train.py")
        info.size = len(SCRIPT)
        tar.addfile(info, io.BytesIO(SCRIPT.encode()))
    client = server.client("sagemaker")
    bare: list[float] = []
    served: list[float] = []
    for pair in range(pairs + 1):  # the first one warms up
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "headrace", "run", str(job), "--quiet"], env=server.environ, check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        bare.append(time.monotonic() - began)
        began = time.monotonic()
        name = f"hello-{pair}"
        client.create_training_job(**request(name))
        while (found := client.describe_training_job(TrainingJobName=name))["TrainingJobStatus"] == "InProgress":
            time.sleep(0.05)
        served.append(time.monotonic() - began)
        if found["TrainingJobStatus"] != "Completed":
            raise SystemExit(found.get("FailureReason"))
        print(f"  hello: bare {bare[-1]:.2f} s, by boto3 {served[-1]:.2f} s", flush=True)
    return {"bare_seconds": bare[1:], "boto3_seconds": served[1:]}


def request(name: str) -> dict[str, Any]:
    parameters = {"sagemaker_program": "train.py", "sagemaker_submit_directory": f"s3://{BUCKET}/sourcedir.tar.gz"}
    groups = (("data", "ml.c5.xlarge", 2), ("dnn", "ml.m5.xlarge", 1))
    return {
        "TrainingJobName": name,
        "RoleArn": "arn:aws:iam::000000000000:role/headrace",
        "HyperParameters": {key: json.dumps(value) for key, value in parameters.items()},
        "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/out"},
        "ResourceConfig": {
            "InstanceGroups": [
                {"InstanceGroupName": group, "InstanceType": kind, "InstanceCount": count}
                for group, kind, count in groups
            ],
            "VolumeSizeInGB": 10,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    }


def polls(server: Server, count: int) -> dict[str, float]:
    client, logs = server.client("sagemaker"), server.client("logs")
    found = logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix="hello-0/")["logStreams"]
    stream = {"logGroupName": GROUP, "logStreamName": found[0]["logStreamName"], "startFromHead": True}
    calls: dict[str, Callable[[], object]] = {
        "describe": lambda: client.describe_training_job(TrainingJobName="hello-0"),
        "log_events": lambda: logs.get_log_events(**stream),
    }
    result = {}
    for name, call in calls.items():
        before, began = server.cpu(), time.monotonic()
        for _ in range(count):
            call()
        result[f"{name}_cpu_ms"] = round((server.cpu() - before) / count * 1000, 3)
        result[f"{name}_wall_ms"] = round((time.monotonic() - began) / count * 1000, 3)
    print("  polls:", result, flush=True)
    return result


def objects(server: Server, megabytes: int, small: int) -> dict[str, Any]:
    client = server.client("s3")
    source, back = server.home / "source", server.home / "back"
    with source.open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(1_000_000))
    result: dict[str, Any] = {"megabytes": megabytes, "hashes_cpu_seconds": round(hashes(megabytes), 3)}
    result["write_cpu_seconds"] = round(written(server.home / "written", megabytes), 3)
    for name, work in (
        ("up", lambda: client.upload_file(str(source), BUCKET, "big")),
        ("down", lambda: client.download_file(BUCKET, "big", str(back))),
    ):
        before, system, began = server.cpu(), server.system(), time.monotonic()
        work()
        result[f"{name}_cpu_seconds"] = round(server.cpu() - before, 3)
        result[f"{name}_system_seconds"] = round(server.system() - system, 3)
        result[f"{name}_seconds"] = round(time.monotonic() - began, 3)
    if subprocess.run(["cmp", str(source), str(back)], check=False).returncode:
        raise SystemExit("what came back is not what was sent")
    took = []
    before = server.cpu()
    for at in range(small):
        began = time.monotonic()
        client.put_object(Bucket=BUCKET, Key=f"small/{at}", Body=b"x" * 100)
        took.append(time.monotonic() - began)
    result["small_cpu_seconds"] = round(server.cpu() - before, 3)
    result |= {"small_ms_median": round(statistics.median(took) * 1000, 2), "small_ms_most": round(max(took) * 1000, 2)}
    print("  objects:", result, flush=True)
    return result


def crowd(server: Server, count: int) -> dict[str, Any]:
    """Opens connections that send nothing, and asks behind them."""
    address = urlsplit(server.url)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    before = server.cpu()
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex((address.hostname, address.port))
        began = time.monotonic()
        server.client("s3").list_buckets()
        result = {"connections": count, "call_seconds": round(time.monotonic() - began, 3), "memory": server.memory()}
    result["cpu_seconds"] = round(server.cpu() - before, 3)
    print("  crowd:", result, flush=True)
    return result


def hashes(megabytes: int) -> float:
    """Returns the CPU seconds of the hashes that an upload needs, without any bytes that come or go."""
    data = os.urandom(500_000)
    sha256, md5, crc = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
    before = time.process_time()
    for _ in range(2 * megabytes):
        sha256.update(data)
        md5.update(data)
        crc = isal_zlib.crc32(data, crc)
    return time.process_time() - before


def written(path: Path, megabytes: int) -> float:
    """Returns the CPU seconds of writing a file in pieces of 500 kB."""
    data = os.urandom(500_000)
    before = time.process_time()
    with path.open("wb", buffering=0) as file:
        for _ in range(2 * megabytes):
            file.write(data)
    took = time.process_time() - before
    path.unlink()
    return took


def summary(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--polls", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--small", type=int, default=100)
    parser.add_argument("--crowd", type=int, default=10_000, help="connections that send nothing")
    parser.add_argument("--repeat", type=int, default=3, help="how often the objects are sent and fetched")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="bench-serve-"))
    result: dict[str, Any] = {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"), "machine": platform.platform(),
        "cpus": os.cpu_count(), "load_before": os.getloadavg(), "python": platform.python_version(),
    }  # fmt: skip
    server = Server(home)
    try:
        result["idle_memory"] = server.memory()
        result["hello"] = hello(server, args.pairs)
        differences = [b - a for a, b in zip(*result["hello"].values(), strict=True)]
        result["hello"]["difference"] = summary(differences)
        result["polls"] = polls(server, args.polls)
        result["objects"] = [objects(server, args.megabytes, args.small) for _ in range(args.repeat)]
        for name in FIGURES:
            result[name] = summary([each[name] for each in result["objects"]])
        result["memory"] = server.memory()
        result["crowd"] = crowd(server, args.crowd)
    finally:
        server.end()
        shutil.rmtree(home, ignore_errors=True)
    result["load_after"] = os.getloadavg()
    print(
        json.dumps({name: result[name] for name in (*FIGURES, "memory")}),
        flush=True,
    )
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
