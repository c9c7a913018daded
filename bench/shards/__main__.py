"""Measures every row, contenders in turn, and writes raw data and a table below bench/results.

python -m bench.shards [--rounds N] [--rows tar-small,...]
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.shards.contenders import CONTENDERS
from bench.shards.work import ROWS, prepare

from headrace import feed

RESULTS = Path(__file__).parent.parent / "results"
LIBRARIES = ("torch", "numpy", "webdataset", "datasets", "pyarrow", "pillow")


def index_cost(folder: Path) -> float:
    """Returns the CPU microseconds that the index takes for a member of a tar, made in one process."""
    from headrace.feed.sources import tar_shards

    paths = sorted(folder.glob("*.tar"))
    began = time.process_time()
    rows = sum(tar_shards.index(path)[0] for path in paths)
    return (time.process_time() - began) / (2 * rows) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default=",".join(ROWS))
    given = parser.parse_args()
    name = f"shards-{time.strftime('%Y%m%d')}"
    measured: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        indexing = {}
        for row in given.rows.split(","):
            shards = prepare(row, Path(folder))
            if row != "parquet-text":
                indexing[row] = [index_cost(shards) for _ in range(given.rounds)]
            (feed.parquet if row == "parquet-text" else feed.tar)(shards)
            for turn in range(given.rounds):
                for contender in CONTENDERS[row]:
                    command = [sys.executable, "-m", "bench.shards.contenders", contender, row, str(shards)]
                    environment = os.environ | {"HF_HOME": folder, "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
                    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
                    found = json.loads(done.stdout.splitlines()[-1])
                    measured.append({"row": row, "round": turn, "contender": contender} | found)
                    print(measured[-1], flush=True)
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, measured[0].keys())
        writer.writeheader()
        writer.writerows(measured)
    about = {
        "machine": platform.machine(), "kernel": platform.release(), "python": platform.python_version(),
        "cores": os.cpu_count(), "load": os.getloadavg(), "microseconds_a_member": indexing,
        "libraries": {library: importlib.metadata.version(library) for library in LIBRARIES},
    }  # fmt: skip
    (RESULTS / f"{name}.json").write_text(json.dumps(about, indent=1) + "\n")
    print(table(measured))


def table(measured: list[dict[str, object]]) -> str:
    """Returns the table of the page: medians, and ratios within a round."""
    lines = ["| row | contender | samples/s | CPU us a sample | CPU against headrace |", "|---|---|---|---|---|"]
    runs = {(str(m["row"]), str(m["contender"]), int(str(m["round"]))): m for m in measured}
    for row in dict.fromkeys(key[0] for key in runs):
        for contender in dict.fromkeys(key[1] for key in runs if key[0] == row):
            turns = [key[2] for key in runs if key[:2] == (row, contender)]
            cpu = [_cpu(runs[row, contender, turn]) for turn in turns]
            rate = [
                _float(runs[row, contender, t], "samples") / _float(runs[row, contender, t], "seconds") for t in turns
            ]
            ratio = [one / _cpu(runs[row, "headrace", turn]) for one, turn in zip(cpu, turns, strict=True)]
            medians = f"{statistics.median(rate):,.0f} | {statistics.median(cpu):,.0f}"
            against = f"{statistics.median(ratio):.2f}x ({min(ratio):.2f} .. {max(ratio):.2f})"
            lines.append(f"| `{row}` | {contender.replace('_', ' ')} | {medians} | {against} |")
    return "\n".join(lines)


def _float(run: dict[str, object], key: str) -> float:
    return float(str(run[key]))


def _cpu(run: dict[str, object]) -> float:
    return _float(run, "cpu") / _float(run, "samples") * 1e6


if __name__ == "__main__":
    main()
