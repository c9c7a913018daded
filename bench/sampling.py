"""What it costs an agent to measure its host once a second, as a share of one core.

    python -m bench.sampling --processes 20 --threads 30 --seconds 20 --repeat 3 --output bench/results/sampling.json

This process acts as the agent; its children are the host's processes. CPU seconds (user + system, all threads of this
process) mean the same on a busy machine. Rows, interleaved:

    idle      the agent's loop wakes once a second and does nothing
    walk      the process table alone, by the kernel's lists of children (`descendants`): how it was done first
    sampling  all that `HostSampler` does: process table, disk, network, GPUs if there are any, the records on disk
    values    sampling, and 100 lines a second searched for 10 metric definitions
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from headrace.agent.metrics.counters import Activity
from headrace.agent.metrics.sampler import HostSampler
from headrace.instance.launch_plan import GroupPlan, HostPlan, LaunchPlan, MetricDefinition
from headrace.processes.process_table import descendants
from headrace.runs import EventWriter, RunPaths

CHILD = """
import sys, threading, time
for _ in range(int(sys.argv[1])):
    threading.Thread(target=time.sleep, args=(100000,), daemon=True).start()
print("ready", flush=True)
time.sleep(100000)
"""
LINES = [f"epoch 3 step {step} loss={1 / step:.4f} lr=0.001 samples/s {100 + step}".encode() for step in range(1, 11)]
DEFINITIONS = tuple(MetricDefinition(f"metric {n}", rf"{word}=([0-9.]+)") for n, word in enumerate(["loss", "lr"] * 5))


def plan(folder: Path, definitions: tuple[MetricDefinition, ...]) -> LaunchPlan:
    host = HostPlan("algo-1", "g", "10.0.0.1", str(folder), str(folder))
    group = GroupPlan("g", "ml.c5.xlarge", ("algo-1",))
    return LaunchPlan("job", "job-1", "train.py", (group,), (host,), "algo-1", metric_definitions=definitions)


async def each_second(seconds: float, work: Callable[[], object], times: int = 1) -> None:
    due = time.monotonic()
    end = due + seconds
    while due < end:
        work()
        due += 1 / times
        await asyncio.sleep(max(0.0, due - time.monotonic()))


async def measured(row: str, folder: Path, seconds: float) -> float:
    """CPU seconds of this process during one row."""
    measuring = None
    if row in ("sampling", "values"):
        definitions = DEFINITIONS if row == "values" else ()
        paths = RunPaths(folder)
        measuring = HostSampler(
            plan(folder, definitions), "algo-1", paths, Activity(), EventWriter(paths.events("algo-1"))
        )
        await asyncio.sleep(1.5)  # NVML begins in a thread of its own
    began = time.process_time()
    work: list[Awaitable[None]] = []
    if measuring is None:
        work.append(each_second(seconds, (lambda: descendants(os.getpid())) if row == "walk" else (lambda: None)))
    else:
        sampling = asyncio.ensure_future(measuring.run())
        taking = (lambda: measuring.take("0", LINES)) if row == "values" else (lambda: None)
        work.append(each_second(seconds, taking, times=10 if row == "values" else 1))
    await asyncio.gather(*work)
    spent = time.process_time() - began
    if measuring is not None:
        sampling.cancel()
        await asyncio.wait([sampling])
        measuring.close()
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--threads", type=int, default=30, help="threads of each, beside its first")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    argv = [sys.executable, "-c", CHILD, str(options.threads)]
    children = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(options.processes)]
    shares: dict[str, list[float]] = {"idle": [], "walk": [], "sampling": [], "values": []}
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        for _ in range(options.repeat):
            for row, found in shares.items():
                with tempfile.TemporaryDirectory(prefix="headrace-sampling-") as folder:
                    spent = asyncio.run(measured(row, Path(folder), options.seconds))
                found.append(100 * spent / options.seconds)
                print(f"{row:10} {found[-1]:.3f} % of a core")
    finally:
        for child in children:
            child.kill()
            child.wait()
    for row, found in shares.items():
        print(f"{row:10} median {statistics.median(found):.3f} % of a core, {min(found):.3f} to {max(found):.3f}")
    if options.output:
        document = {
            "unit": "% of one core",
            "formula": "100 * process CPU seconds / seconds",
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}",
            "python": platform.python_version(),
            "other_processes": sum(path.name.isdigit() for path in Path("/proc").iterdir()) - options.processes,
            "options": {"processes": options.processes, "threads": options.threads, "seconds": options.seconds},
            "shares": shares,
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
