"""Measures every row, contenders in turn, and writes raw data and a table below bench/results.

    python -m bench.shards [--rounds N] [--rows tar-small,...] [--only headrace,...] [--into FILE.csv] [--shards FOLDER]
    python -m bench.shards --sweep --rounds 1 [...]     # first: the peers over their settings
    python -m bench.shards --publish FILE.csv           # the table and the picture of the docs, from raw data

What FILE.csv has is kept, so that a run that was cut off goes on; what FOLDER has is not written again. A sweep counts
one epoch, a round all of the row but its first.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.metadata
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.shards.contenders import CONTENDERS, FORMS
from bench.shards.conversion import converted
from bench.shards.publish import publish, table
from bench.shards.settings import DEFAULT, OURS, RESULTS, Settings, best, swept
from bench.shards.work import ROWS, TEXTS, prepare

from headrace import feed

COLUMNS = ("row", "round", "contender", "settings", "samples", "seconds", "cpu")
LIBRARIES = (
    "torch", "numpy", "webdataset", "datasets", "pyarrow", "pillow", "grain", "litdata", "megatron-energon", "spdl",
    "ray",
)  # fmt: skip
SWEPT_EPOCHS = 2  # the first is not counted
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


def surroundings() -> dict[str, object]:
    """Returns where and with what a run is made."""
    return {
        "time": time.strftime("%Y-%m-%d", time.gmtime()), "machine": platform.machine(), "kernel": platform.release(),
        "python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg(),
        "libraries": {library: importlib.metadata.version(library) for library in LIBRARIES},
    }  # fmt: skip


def run(
    contender: str,
    module: str,
    *arguments: str,
    shards: Path,
    package: str = "bench.shards",
    limit: float | None = None,
    ranks: int = 1,
) -> dict[str, str]:
    """Runs a module of a contender in its own environment, by torchrun if on several ranks. Returns what it, or one
    rank, prints. Ends it after `limit` seconds."""
    python = PYTHONS.get(contender, Path(sys.executable))
    extra = [str(STAND_INS[contender])] if contender in STAND_INS else []
    environment = os.environ | {
        "HF_HOME": str(shards.parent),
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *extra]),
    }
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [str(python), *launcher, "-m", f"{package}.{module}", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, timeout=limit)
    return {name: str(value) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}


def prepared(rows: list[str], only: list[str], folder: Path) -> tuple[dict[str, Path], dict[str, dict[str, str]]]:
    """Writes the shards of the rows, their indices and the peers' forms. Returns folders, and what the forms cost."""
    shards: dict[str, Path] = {}
    conversions: dict[str, dict[str, str]] = {}
    for row in rows:
        shards[row] = prepare(row, folder)
        (feed.parquet if row in TEXTS else feed.tar)(shards[row])
        for contender in contenders_of(row, only):
            form = FORMS.get(contender.partition("_")[0])
            if form and not converted(form, row, shards[row]).exists():
                conversions[f"{row} {form}"] = run(
                    contender, "conversion", form, row, str(shards[row]), shards=shards[row]
                )
    return shards, conversions


def contenders_of(row: str, only: list[str]) -> list[str]:
    """Returns who runs a row: all, or those of them that are named."""
    return [name for name in CONTENDERS[row] if not only or name in only]


def planned(rounds: int, rows: list[str], only: list[str], sweep: bool) -> Iterator[tuple[str, str, str, Settings]]:
    """Yields row, round, contender and settings of every run: whole rounds, so that a run that is cut off has some."""
    found = {} if sweep else best()
    for turn, row in itertools.product(range(rounds), rows):
        for contender in contenders_of(row, only):
            for settings in swept(contender) if sweep else (found.get((row, contender), DEFAULT),):
                yield row, str(turn), contender, DEFAULT if contender.startswith(OURS) else settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--only", default="", help="contenders, if not all")
    parser.add_argument("--sweep", action="store_true", help="the peers over their settings; later runs take the best")
    parser.add_argument("--publish", type=Path, help="write docs/benchmark-figures.md and its picture from raw data")
    parser.add_argument("--shards", type=Path, help="folder of shards and peers' forms; by default one that is removed")
    parser.add_argument("--into", type=Path, help="raw data (CSV); by default of this day, in bench/results")
    given = parser.parse_args()
    if given.publish:
        publish(given.publish)
        return
    kind = "shards-sweep" if given.sweep else "shards"
    into: Path = given.into or RESULTS / f"{kind}-{time.strftime('%Y%m%d')}.csv"
    into.parent.mkdir(exist_ok=True)
    rows, only = given.rows.split(","), [name for name in given.only.split(",") if name]
    measured: list[dict[str, str]] = list(csv.DictReader(into.open())) if into.exists() else []
    have = {(each["row"], each["round"], each["contender"], each["settings"]) for each in measured}
    about = surroundings()
    place = contextlib.nullcontext(given.shards) if given.shards else tempfile.TemporaryDirectory()
    with place as folder, into.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not measured:
            writer.writeheader()
        shards, conversions = prepared(rows, only, Path(folder))
        about |= {
            "microseconds_a_member": {row: index_cost(shards[row]) for row in rows if row not in TEXTS},
            "conversions": conversions,
        }
        into.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
        for row, turn, contender, settings in planned(given.rounds, rows, only, given.sweep):
            said = json.dumps(settings._asdict())
            if (row, turn, contender, said) in have:
                continue
            key = {"row": row, "round": turn, "contender": contender, "settings": said}
            epochs = SWEPT_EPOCHS if given.sweep else ROWS[row].epochs
            done = key | run(
                contender, "contenders", contender, row, said, str(shards[row]), str(epochs), shards=shards[row]
            )
            measured.append(done)
            writer.writerow(done)
            file.flush()
            print(*done.values(), flush=True)
    if not given.sweep:
        print(table(measured))


if __name__ == "__main__":
    main()
