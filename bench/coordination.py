"""What a job of N idle hosts costs while it runs: the leader's agent as the job's coordinator, and the run's record.

    python -m bench.coordination 16 64 200 --output bench/results/coordination.jsonl

Every host runs one program that sleeps; the record of the run is stored in a bucket every 3 s, the default. All
figures are differences between two moments of one run: when all programs run, and `--seconds` later. CPU seconds mean
the same on a busy machine. A row has:

    start_s               wall seconds from `start` until all programs run
    coordinator_start_s   CPU seconds of the leader's agent until then, less the median of the other agents
    coordinator_per_host  CPU milliseconds of the leader's agent per host and minute, less the median of the others
    agent_per_minute      CPU seconds of another agent per minute (median): its own heartbeats and measurements
    supervisor_per_minute CPU seconds of the supervisor per minute
    store_per_hour        CPU seconds of the process that stores the record, per hour
    requests_per_hour     objects that were written, per hour
    megabytes_per_hour    what they held
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

SLEEP = "import time\nprint('running', flush=True)\ntime.sleep(3600)\n"
STORING = "headrace.hosting.helpers.store_record"
BUCKET = "bench"
PORT = 5999
USER = {
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORT}",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def cpu_of(pid: int) -> float:
    """CPU seconds of one process, without its children."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def client() -> Any:
    """Returns the bucket's client, once the server answers."""
    import botocore.exceptions
    import botocore.session

    made = botocore.session.get_session().create_client("s3", region_name="us-east-1")
    deadline = time.monotonic() + 60
    while True:
        try:
            made.create_bucket(Bucket=BUCKET)
            return made
        except botocore.exceptions.EndpointConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def stored(bucket: Any, run_id: str) -> tuple[int, int]:
    """Returns how many objects a record has, and their bytes."""
    pages = bucket.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"runs/{run_id}/")
    sizes = [each["Size"] for page in pages for each in page.get("Contents", ())]
    return len(sizes), sum(sizes)


def measure(hosts: int, seconds: float, bucket: Any) -> dict[str, float | int]:
    """Runs one job, looks at it for some seconds, and stops it."""
    from headrace import engines
    from headrace.job import Job
    from headrace.runs import Status, read_header
    from headrace.runs.events import HostStarted, ProgramStarted

    with tempfile.TemporaryDirectory(prefix="headrace-coordination-") as folder:
        os.environ["HEADRACE_HOME"] = f"{folder}/home"
        code = Path(folder, "code")
        code.mkdir()
        (code / "train.py").write_text(SLEEP)
        job = Job(
            "idle",
            source_dir=str(code),
            entry_point="train.py",
            instance_groups=[{"name": "idle", "type": "ml.c5.xlarge", "count": hosts}],
            record={"uri": f"s3://{BUCKET}/runs"},
            engines={
                "local": {"isolation": "none", "address_prefix": f"127.{100 + os.getpid() % 100}.4", "stop_grace": 5}
            },
        )
        began = time.monotonic()
        handle = engines.start(job)
        try:
            while sum(isinstance(event, ProgramStarted) for event in handle.run.events()) < hosts:
                if handle.run.finished or time.monotonic() - began > 600:
                    raise SystemExit(f"{hosts} hosts did not start: {handle.run.cause}")
                time.sleep(0.2)
            start = time.monotonic() - began
            agents = {event.host: event.pid for event in handle.run.events() if isinstance(event, HostStarted)}
            supervisor = read_header(handle.paths).supervisor_pid
            (storing,) = [
                each.pid for each in psutil.Process(supervisor).children(recursive=True) if STORING in each.cmdline()
            ]
            first, first_at = _look(agents, supervisor, storing, stored(bucket, handle.id)), time.monotonic()
            time.sleep(seconds)
            second, second_at = _look(agents, supervisor, storing, stored(bucket, handle.id)), time.monotonic()
        finally:
            handle.stop(now=True)
            status = handle.wait(120)
        if status is not Status.STOPPED:
            raise SystemExit(f"{hosts} hosts: {status.value}: {handle.cause}")
    return _row(hosts, start, first, second, second_at - first_at)


Look = tuple[dict[str, float], float, float, tuple[int, int]]


def _look(agents: dict[str, int], supervisor: int, storing: int, record: tuple[int, int]) -> Look:
    return {host: cpu_of(pid) for host, pid in agents.items()}, cpu_of(supervisor), cpu_of(storing), record


def _row(hosts: int, start: float, first: Look, second: Look, seconds: float) -> dict[str, float | int]:
    spent = {host: second[0][host] - before for host, before in first[0].items()}
    others = statistics.median(cpu for host, cpu in spent.items() if host != "algo-1")
    at_start = statistics.median(cpu for host, cpu in first[0].items() if host != "algo-1")
    minute, hour = 60 / seconds, 3600 / seconds
    return {
        "hosts": hosts,
        "seconds": round(seconds, 1),
        "start_s": round(start, 2),
        "coordinator_start_s": round(first[0]["algo-1"] - at_start, 3),
        "coordinator_per_host": round(1000 * (spent["algo-1"] - others) * minute / hosts, 3),
        "agent_per_minute": round(others * minute, 4),
        "supervisor_per_minute": round((second[1] - first[1]) * minute, 3),
        "store_per_hour": round((second[2] - first[2]) * hour, 1),
        "requests_per_hour": round((second[3][0] - first[3][0]) * hour),
        "megabytes_per_hour": round((second[3][1] - first[3][1]) * hour / 1e6, 1),
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="bench.coordination", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("hosts", type=int, nargs="+", help="how many hosts; each is a job of its own")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a job is looked at (default 60)")
    parser.add_argument("--output", type=Path, help="file to which the raw data is appended as JSON lines")
    options = parser.parse_args()
    os.environ.update(USER)
    machine = {"cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version()}
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(PORT)], stdout=log, stderr=log
        )
        try:
            bucket = client()
            for hosts in options.hosts:
                row = measure(hosts, options.seconds, bucket)
                print(json.dumps(row), flush=True)
                if options.output:
                    with options.output.open("a") as file:
                        raw = {"t": round(time.time()), **machine, "load": os.getloadavg()[0], **row}
                        file.write(json.dumps(raw) + "\n")
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()
