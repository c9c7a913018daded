"""What a grid costs: planning many lines, and running small ones beside the same jobs started one by one.

    python -m bench.grid --plan 10000 --lines 200 --parallel 8 --rounds 3 --output bench/results/grid.jsonl

plan     CPU seconds of `headrace grid plan` of so many lines, over 4 and over 20 regions
grid     `headrace grid run` of so many lines of a hello job by the local engine, so many at once
bare     the same jobs with `headrace run`, one process each, so many at once

CPU seconds are those of all that descends from each side, detached runs too: this process is their subreaper, so the
kernel accounts them to it (getrusage). `grid` and `bare` take turns. `controller` is the process of `grid run` itself.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HELLO = 'import os\nprint("hello from", os.environ["SM_CURRENT_HOST"], flush=True)\n'
JOB = """
source_dir: code
entry_point: train.py
instance_groups: [{name: hello, type: ml.c5.xlarge, count: 1}]
"""
ARRAY = """
name: bench
job: job.yaml
lines: {{product: {{hyperparameters.line: {lines}}}}}
limits: {{parallel: {parallel}}}
"""
PLAN = """
name: bench
job: job.yaml
lines: {{file: array.csv}}
placement:
  regions: [{regions}]
  data: {{"s3://sf": {{region: us-west-1, gigabytes: 800}}, "s3://fra": {{region: eu-central-1, gigabytes: 300}}}}
"""
REGIONS = (
    "us-east-1", "us-west-2", "eu-west-1", "eu-central-1", "us-west-1", "us-east-2", "eu-west-2", "eu-west-3",
    "eu-north-1", "eu-south-1", "ap-south-1", "ap-northeast-1", "ap-northeast-2", "ap-northeast-3", "ap-southeast-1",
    "ap-southeast-2", "ca-central-1", "sa-east-1", "me-south-1", "af-south-1",
)  # fmt: skip
HEADRACE = [sys.executable, "-m", "headrace"]
PR_SET_CHILD_SUBREAPER = 36


def cpu_of_children() -> float:
    """CPU seconds of all children that were waited for; orphans that came to this process are waited for first."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def plan_cpu(folder: Path, lines: int, regions: int) -> float:
    """CPU seconds of a plan over the first so many regions."""
    rows = (f"s3://{('sf', 'fra')[n % 2]}/{n}\n" for n in range(lines))
    (folder / "array.csv").write_text("inputs.train.path\n" + "".join(rows))
    (folder / "plan.yaml").write_text(PLAN.format(regions=", ".join(REGIONS[:regions])))
    (folder / "job.yaml").write_text(JOB + "inputs: {train: s3://sf/all}\n")
    began = cpu_of_children()
    subprocess.run([*HEADRACE, "grid", "plan", "plan.yaml"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return cpu_of_children() - began


def measured(folder: Path, lines: int, parallel: int, grid: bool) -> dict[str, float]:
    """Runs the hello jobs in one of both ways. Returns wall and CPU seconds; raises unless all have completed."""
    home = Path(tempfile.mkdtemp(prefix="home-", dir=folder))
    env = {**os.environ, "HEADRACE_HOME": str(home)}
    own, began, wall = 0.0, cpu_of_children(), time.monotonic()
    if grid:
        (folder / "array.yaml").write_text(ARRAY.format(lines=list(range(lines)), parallel=parallel))
        command = [*HEADRACE, "grid", "run", "array.yaml", "--yes"]
        with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL) as controller:
            os.waitid(os.P_PID, controller.pid, os.WEXITED | os.WNOWAIT)  # it ended, and its figures are still there
            spent = Path(f"/proc/{controller.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            own = sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")
        if controller.returncode:
            raise SystemExit(f"the grid ended with {controller.returncode}: see {home}")
    else:
        (folder / "job.yaml").write_text(JOB)

        def one(line: int) -> int:
            words = [
                *HEADRACE,
                "run",
                "job.yaml",
                "--set",
                f"hyperparameters.line={line}",
                "--set",
                f"job_name=b-{line}",
            ]
            return subprocess.run(words, cwd=folder, env=env, stdout=subprocess.DEVNULL, check=False).returncode

        with ThreadPoolExecutor(parallel) as pool:
            codes = list(pool.map(one, range(lines)))
        if any(codes):
            raise SystemExit(f"{sum(map(bool, codes))} jobs failed: see {home}")
    wall = time.monotonic() - wall
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu_of_children() - began, 2), "controller_cpu_s": round(own, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench.grid", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--plan", type=int, default=10_000, help="lines of the plan (default 10000)")
    parser.add_argument("--lines", type=int, default=200, help="lines that run (default 200)")
    parser.add_argument("--parallel", type=int, default=8, help="at once (default 8)")
    parser.add_argument("--rounds", type=int, default=3, help="of grid and bare in turn (default 3)")
    parser.add_argument("--output", type=Path, help="file to which the raw data is appended as JSON lines")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    machine = {"cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version()}

    def keep(row: dict[str, object]) -> None:
        if options.output:
            with options.output.open("a") as file:
                file.write(json.dumps({"t": round(time.time()), **machine, "load": os.getloadavg()[0], **row}) + "\n")

    with tempfile.TemporaryDirectory(prefix="headrace-grid-") as made:
        folder = Path(made)
        (folder / "code").mkdir()
        (folder / "code" / "train.py").write_text(HELLO)
        for regions in (4, 20) * (options.rounds if options.plan else 0):
            one, many = (plan_cpu(folder, lines, regions) for lines in (1, options.plan))
            print(
                f"plan of {options.plan} lines, {regions} regions: {many:.2f} CPU s; of one line {one:.2f}", flush=True
            )
            row = {"what": "plan", "regions": regions, "cpu_s": round(many, 2), "one_line_cpu_s": round(one, 2)}
            keep({**row, "lines": options.plan})
        ratios: list[tuple[float, float]] = []
        for _ in range(options.rounds):
            (folder / "job.yaml").write_text(JOB)
            grid = measured(folder, options.lines, options.parallel, grid=True)
            bare = measured(folder, options.lines, options.parallel, grid=False)
            ratios.append((grid["wall_s"] / bare["wall_s"], grid["cpu_s"] / bare["cpu_s"]))
            for what, row in (("grid", grid), ("bare", bare)):
                print(f"{what}: {row}", flush=True)
                keep({"what": what, "lines": options.lines, "parallel": options.parallel, **row})
            print(f"controller: {1000 * grid['controller_cpu_s'] / options.lines:.0f} CPU ms a line", flush=True)
        for name, values in zip(("wall", "CPU"), zip(*ratios, strict=True), strict=True):
            print(f"grid to bare, {name}: {statistics.median(values):.2f}x ({min(values):.2f} .. {max(values):.2f})")


if __name__ == "__main__":
    main()
