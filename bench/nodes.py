"""What the feed carries from a data host to a trainer over the nodes of a Slurm cluster, against the local engine.

    python -m bench.nodes --rounds 5 --output bench/results/nodes.jsonl

The same job on both, in turn: one data host with one worker, one host that trains, batches of 19 MB of one tensor
(`copied`: one memcpy each) or of 256 KB that take the worker a millisecond of NumPy (`computed`). The cluster is the
one of the tests: real slurmctld and slurmd, every node in a network namespace, joined by veth, all on this machine. The
local engine has its hosts in namespaces as well. A figure:

    GB/s     bytes of the batches that `next()` gave in the measured window, by the trainer's clock
    CPU s/GB both hosts, agents and supervisors of the hosts included, in the seconds of that window (`HostSecond.cpu`)

A ratio is that of a round, nodes to local: of GB/s more is better for the nodes, of CPU s/GB less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
TRAIN = """
import json, sys, time
from data import rows
from headrace import feed
given = dict(zip(sys.argv[1::2], map(int, sys.argv[2::2])))
warm, measured, size = given["--warm"], given["--measured"], given["--size"]
steps = iter(feed.DataLoader(rows(size), batch_size=None))
for _ in range(warm):
    next(steps)
began, done = time.time(), 0
for _ in range(measured):
    done += next(steps).nbytes
print(json.dumps({"began": began, "ended": time.time(), "bytes": done}), flush=True)
"""
DATA = """
import numpy as np
from headrace import feed
class Rows:
    def __init__(self, size):
        self.page = np.arange(size, dtype=np.uint8)
        self.work = size < 1 << 20
    def __len__(self): return 1 << 20
    def __getitem__(self, index):
        page = self.page.copy()
        if self.work:
            np.sort(np.sin(np.arange(20_000.0) + index))
        page[0] = index % 256
        return page
@feed.pipeline
def rows(size): return Rows(size)
"""
ROWS = {"copied": (19_267_584, 20, 150), "computed": (262_144, 100, 2000)}
LIMIT = 300.0


def job(folder: Path, row: str, engines: dict[str, object]) -> dict[str, object]:
    """Writes the job's code, and returns its job file."""
    code = folder / "code"
    code.mkdir(parents=True, exist_ok=True)
    (code / "train.py").write_text(TRAIN)
    (code / "data.py").write_text(DATA)
    size, warm, measured = ROWS[row]
    return {
        "job_name": f"nodes-{row}",
        "source_dir": str(code),
        "entry_point": "train.py",
        "hyperparameters": {"warm": warm, "measured": measured, "size": size},
        "environment": {"OMP_NUM_THREADS": "1"},
        "instance_groups": [
            {"name": "data_group", "type": "ml.c5.xlarge", "count": 1},
            {"name": "dnn_group", "type": "ml.c5.xlarge", "count": 1},
        ],
        "data_service": {"feed": {"enabled": True, "workers_per_host": 1}, "instance_groups": ["data_group"]},
        "completion": {"instance_groups": ["dnn_group"]},
        "engines": engines,
    }


def figures(root: Path, said: list[str]) -> dict[str, float]:
    """Returns the figures of a run from its record."""
    window = next(json.loads(line) for line in said if line.startswith('{"began"'))
    began, ended, gigabytes = window["began"], window["ended"], window["bytes"] / 1e9
    cpu = 0.0
    for file in sorted(root.glob("metrics/*/*/host.jsonl")):
        seconds = [json.loads(line) for line in file.read_text().splitlines()]
        times, used = [second["t"] for second in seconds], [second["cpu"] for second in seconds]
        cpu += float(np.interp(ended, times, used) - np.interp(began, times, used))
    return {
        "gb_per_s": round(gigabytes / (ended - began), 4),
        "cpu_s_per_gb": round(cpu / gigabytes, 4),
        "seconds": round(ended - began, 3),
    }


def on_this_machine(row: str) -> dict[str, float]:
    """Runs the job by the local engine."""
    from headrace import engines
    from headrace.job import Job
    from headrace.runs import Status

    with tempfile.TemporaryDirectory(prefix="headrace-nodes-") as folder:
        os.environ["HEADRACE_HOME"] = f"{folder}/home"
        handle = engines.start(Job(**job(Path(folder), row, {})))  # type: ignore[arg-type]
        status = handle.wait(LIMIT)
        said = [line.text for line in handle.logs()]
        if status is not Status.COMPLETED:
            handle.stop(now=True)
            raise SystemExit(f"local, {row}: {status.value}: {handle.cause}\n" + "\n".join(said[-20:]))
        return figures(handle.paths.root, said)


def on_nodes(cluster: object, row: str) -> dict[str, float]:
    """Runs the job on the cluster."""
    from slurm_stage import PARTITIONS, submit  # type: ignore[import-not-found]
    from stage import text  # type: ignore[import-not-found]

    folder: Path = cluster.folder  # type: ignore[attr-defined]
    groups = {"data_group": PARTITIONS["data_group"], "dnn_group": {"partition": "dnn"}}
    file = folder / f"{row}.yaml"
    file.write_text(json.dumps(job(folder / row, row, {"slurm": {"stop_grace": 5, "groups": groups}})))
    run = submit(cluster, str(file))
    run.completed(LIMIT)
    return figures(run.run.paths.root, text(run).splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench.nodes", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="pairs of each row (default 5)")
    parser.add_argument("--output", type=Path, help="file to which the raw data is appended as JSON lines")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / "tests" / place) for place in ("engines", "proof", ".")]
    from slurm_stage import started_cluster

    machine = {"cpus": len(os.sched_getaffinity(0)), "kernel": platform.release(), "python": platform.python_version()}
    with started_cluster() as cluster:
        contenders: dict[str, Callable[[str], dict[str, float]]] = {
            "local": on_this_machine,
            "slurm": lambda row: on_nodes(cluster, row),
        }
        for row in ROWS:
            rounds = []
            for number in range(options.rounds):
                order = list(contenders) if number % 2 == 0 else list(reversed(contenders))
                found = {name: contenders[name](row) for name in order}
                rounds.append(found)
                for name in order:
                    line = {"t": round(time.time()), **machine, "load": os.getloadavg()[0], "row": row}
                    line.update({"round": number, "engine": name, **found[name]})
                    print(json.dumps(line), flush=True)
                    if options.output:
                        with options.output.open("a") as file:
                            file.write(json.dumps(line) + "\n")
            for figure in ("gb_per_s", "cpu_s_per_gb"):
                ratios = [each["slurm"][figure] / each["local"][figure] for each in rounds]
                middle = statistics.median(each["slurm"][figure] for each in rounds)
                local = statistics.median(each["local"][figure] for each in rounds)
                print(
                    f"{row} {figure}: nodes {middle:.3f}, local {local:.3f}, "
                    f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} .. {max(ratios):.2f})"
                )


if __name__ == "__main__":
    main()
