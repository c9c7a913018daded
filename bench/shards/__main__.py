"""Measures every row, contenders in turn, and writes raw data and a table below bench/results.

python -m bench.shards [--rounds N] [--rows tar-small,...] [--only headrace,...] [--into FILE.csv]

What FILE.csv has is kept.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.shards.contenders import CONTENDERS, FORMS
from bench.shards.conversion import converted
from bench.shards.work import ROWS, TEXTS, prepare

from headrace import feed

RESULTS = Path(__file__).parent.parent / "results"
COLUMNS = ("row", "round", "contender", "samples", "seconds", "cpu")
LIBRARIES = (
    "torch", "numpy", "webdataset", "datasets", "pyarrow", "pillow", "grain", "litdata", "megatron-energon", "spdl",
    "ray",
)  # fmt: skip
ROOT = Path(__file__).parent.parent.parent
# Mosaic Streaming needs an older NumPy than the others.
PYTHONS = {"mosaic": ROOT / ".venv-mosaic/bin/python"}
STAND_INS = {"mosaic": Path(__file__).parent / "stand_ins"}


def index_cost(folder: Path) -> float:
    """Returns the CPU microseconds that the index takes for a member of a tar, made in one process."""
    from headrace.feed.sources import tar_shards

    paths = sorted(folder.glob("*.tar"))
    began = time.process_time()
    rows = sum(tar_shards.index(path)[0] for path in paths)
    return (time.process_time() - began) / (2 * rows) * 1e6


def run(contender: str, module: str, *arguments: str, shards: Path) -> dict[str, str]:
    """Runs a module of a contender in its own environment. Returns what it prints."""
    python = PYTHONS.get(contender, Path(sys.executable))
    extra = [str(STAND_INS[contender])] if contender in STAND_INS else []
    environment = os.environ | {
        "HF_HOME": str(shards.parent),
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *extra]),
    }
    command = [str(python), "-m", f"bench.shards.{module}", *arguments, str(shards)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return {name: str(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--only", default="", help="contenders, if not all")
    parser.add_argument("--into", type=Path, default=RESULTS / f"shards-{time.strftime('%Y%m%d')}.csv")
    given = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    measured: list[dict[str, str]] = list(csv.DictReader(given.into.open())) if given.into.exists() else []
    have = {(run["row"], run["round"], run["contender"]) for run in measured}
    indexing: dict[str, list[float]] = {}
    conversions: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder, given.into.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not measured:
            writer.writeheader()
        for row in given.rows.split(","):
            shards = prepare(row, Path(folder))
            if row not in TEXTS:
                indexing[row] = [index_cost(shards) for _ in range(given.rounds)]
            (feed.parquet if row in TEXTS else feed.tar)(shards)
            contenders = [name for name in CONTENDERS[row] if not given.only or name in given.only.split(",")]
            for contender in contenders:
                form = FORMS.get(contender.partition("_")[0])
                if form and not converted(form, row, shards).exists():
                    conversions[f"{row} {form}"] = run(contender, "conversion", form, row, shards=shards)
            for turn, contender in itertools.product(range(given.rounds), contenders):
                if (row, str(turn), contender) in have:
                    continue
                done = {"row": row, "round": str(turn), "contender": contender} | run(
                    contender, "contenders", contender, row, shards=shards
                )
                measured.append(done)
                writer.writerow(done)
                file.flush()
                print(*done.values(), flush=True)
    about = {
        "machine": platform.machine(), "kernel": platform.release(), "python": platform.python_version(),
        "cores": os.cpu_count(), "load": os.getloadavg(), "microseconds_a_member": indexing,
        "conversions": conversions,
        "libraries": {library: importlib.metadata.version(library) for library in LIBRARIES},
    }  # fmt: skip
    given.into.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
    print(table(measured))


def table(measured: list[dict[str, str]]) -> str:
    """Returns the table of the page: medians, and ratios within a round."""
    lines = ["| row | contender | samples/s | CPU us a sample | CPU against headrace |", "|---|---|---|---|---|"]
    runs = {(run["row"], run["contender"], run["round"]): run for run in measured}
    for row in dict.fromkeys(key[0] for key in runs):
        first = next(key[1] for key in runs if key[0] == row)
        for contender in dict.fromkeys(key[1] for key in runs if key[0] == row):
            turns = [key[2] for key in runs if key[:2] == (row, contender)]
            mine = [runs[row, contender, turn] for turn in turns]
            rate = [float(run["samples"]) / float(run["seconds"]) for run in mine]
            cpu = [_cpu(run) for run in mine]
            ratio = [one / _cpu(runs[row, first, turn]) for one, turn in zip(cpu, turns, strict=True)]
            medians = f"{statistics.median(rate):,.0f} | {statistics.median(cpu):,.0f}"
            against = f"{statistics.median(ratio):.2f}x ({min(ratio):.2f} .. {max(ratio):.2f})"
            lines.append(f"| `{row}` | {contender.replace('_', ' ')} | {medians} | {against} |")
    return "\n".join(lines)


def _cpu(run: dict[str, str]) -> float:
    return float(run["cpu"]) / float(run["samples"]) * 1e6


if __name__ == "__main__":
    main()
