"""What a job of N hello instances costs at start: wall time, and CPU seconds by who spent them.

    python -m bench.scale 3 64 --repeat 3 --output bench/results/scale.json

Every instance runs one program that prints a line. CPU seconds mean the same on a busy machine, wall time does not:

    total        the supervisor and all that descends from it, as the kernel accounts it to this process (getrusage)
    hosts        sum of the last `HostSecond` of every host: its agent and its programs
    coordinator  the leader's host less the median of the others: what one agent spends as the job's coordinator
    supervisor   total less hosts
    submit       this process, from `start` to the end of `wait`
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from pathlib import Path

HELLO = 'import os\nprint("hello from", os.environ["SM_CURRENT_HOST"], flush=True)\n'
LIMIT = 300.0


def cpu_of(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def measure(instances: int, local: dict[str, object]) -> dict[str, float | int]:
    """Runs one job. Returns its figures; raises when it does not succeed or a line is missing."""
    from headrace import engines
    from headrace.job import Job
    from headrace.runs import Status

    with tempfile.TemporaryDirectory(prefix="headrace-scale-") as folder:
        os.environ["HEADRACE_HOME"] = f"{folder}/home"
        code = Path(folder, "code")
        code.mkdir()
        (code / "train.py").write_text(HELLO)
        groups = [{"instance_group_name": "hello", "instance_type": "ml.c5.xlarge", "instance_count": instances}]
        options = {"address_prefix": f"127.{100 + os.getpid() % 100}.3", **local}
        job = Job(
            "scale", source_dir=str(code), entry_point="train.py", instance_groups=groups, engines={"local": options}
        )
        children, own, began = cpu_of(resource.RUSAGE_CHILDREN), cpu_of(resource.RUSAGE_SELF), time.monotonic()
        handle = engines.start(job)
        status = handle.wait(LIMIT)
        wall = time.monotonic() - began
        if status is not Status.COMPLETED:
            handle.stop(now=True)
            raise SystemExit(f"{instances} instances: {status.value}: {handle.cause}")
        total = cpu_of(resource.RUSAGE_CHILDREN) - children
        submit = cpu_of(resource.RUSAGE_SELF) - own
        said = {line.text for line in handle.logs()}
        missing = [n for n in range(1, instances + 1) if f"hello from algo-{n}" not in said]
        if missing:
            raise SystemExit(f"no line of algo-{missing}")
        hosts = {
            host: last_cpu(handle.paths.root / "metrics" / "hello" / host / "host.jsonl") for host in _names(instances)
        }
    others = [cpu for host, cpu in hosts.items() if host != "algo-1"] or [hosts["algo-1"]]
    return {
        "instances": instances,
        "wall_s": round(wall, 3),
        "cpu_total_s": round(total, 3),
        "cpu_per_instance_s": round(total / instances, 4),
        "cpu_host_median_s": round(statistics.median(others), 4),
        "cpu_coordinator_s": round(hosts["algo-1"] - statistics.median(others), 3),
        "cpu_supervisor_s": round(total - sum(hosts.values()), 3),
        "cpu_submit_s": round(submit, 3),
    }


def last_cpu(path: Path) -> float:
    return float(json.loads(path.read_text().splitlines()[-1])["cpu"])


def _names(instances: int) -> list[str]:
    return [f"algo-{number}" for number in range(1, instances + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench.scale", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("instances", type=int, nargs="+", help="how many instances; each is a job of its own")
    parser.add_argument("--repeat", type=int, default=3, help="jobs of each size (default 3)")
    parser.add_argument("--local", type=json.loads, default={}, help="options of engines.local as JSON")
    parser.add_argument("--output", type=Path, help="file to which the raw data is appended as JSON lines")
    options = parser.parse_args()
    machine = {"cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version()}
    titles = ("wall", "CPU", "CPU/n", "host", "coord.", "superv.", "submit")
    print(f"{'n':>4} {' '.join(f'{title:>7}' for title in titles)}  (seconds)")
    for instances in options.instances:
        for _ in range(options.repeat):
            row = measure(instances, options.local)
            print(
                f"{instances:4} {row['wall_s']:7.2f} {row['cpu_total_s']:7.2f} {row['cpu_per_instance_s']:7.3f}"
                f" {row['cpu_host_median_s']:7.3f} {row['cpu_coordinator_s']:7.2f} {row['cpu_supervisor_s']:7.2f}"
                f" {row['cpu_submit_s']:7.2f}",
                flush=True,
            )
            if options.output:
                with options.output.open("a") as file:
                    file.write(
                        json.dumps(
                            {"t": round(time.time()), **machine, "load": os.getloadavg()[0], **options.local, **row}
                        )
                        + "\n"
                    )


if __name__ == "__main__":
    main()
