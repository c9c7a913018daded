"""Measures what streams hold, each contender in a process of its own, and keeps raw data below bench/results.

    python -m bench.held [--rows memory,shuffling,kept] [--samples N] [--only headrace,...] [--rounds N]
                            [--into FILE.csv]
    python -m bench.held --publish FILE.csv       # the tables of docs/benchmark-figures.md, from raw data

What FILE.csv has is kept, so that a run that was cut off goes on.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.feed.publish import put
from bench.feed.surroundings import describe
from bench.held import kept, memory, shuffling
from bench.held.rows import parquet, tars

ROOT = Path(__file__).resolve().parents[2]
PEERS = ("torch", "webdataset", "datasets", "pyarrow")
COLUMNS = ("row", "round", "contender", "case", "figures")


def run(row: str, contender: str, case: str, folder: Path) -> str:
    """Runs a contender in a process of its own. Returns the JSON object that it prints."""
    where = {"memory": folder / f"numbers-{case}", "shuffling": folder / "tars", "kept": folder}[row]
    if not where.exists():
        parquet(where, int(case), 10) if row == "memory" else tars(
            where, shuffling.SHARDS, shuffling.ROWS, shuffling.SIZE
        )
    command = [sys.executable, "-m", f"bench.held.{row}", contender, str(where), case]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, text=True)
    return done.stdout.splitlines()[-1]


def planned(rows: list[str], rounds: int, samples: int) -> Iterator[tuple[str, str, str, str]]:
    """Yields row, round, contender and case of every run."""
    for turn in map(str, range(rounds)):
        for row in rows:
            if row == "memory":
                yield from ((row, turn, contender, str(samples)) for contender in memory.CONTENDERS)
            elif row == "kept":
                yield from ((row, turn, contender, case) for case in kept.CASES for contender in kept.CONTENDERS)
            else:
                for contender, sizes in shuffling.SIZES.items():
                    yield from ((row, turn, contender, str(size)) for size in sizes)


def read(raw: Path) -> list[dict[str, str]]:
    """Returns the runs of raw data; none of a file that is not there."""
    if not raw.exists():
        return []
    with raw.open(newline="") as file:
        return list(csv.DictReader(file))


def _found(measured: list[dict[str, str]], row: str) -> dict[tuple[str, str], list[Any]]:
    found: dict[tuple[str, str], list[Any]] = {}
    for run in measured:
        if run["row"] == row:
            found.setdefault((run["contender"], run["case"]), []).append(json.loads(run["figures"]))
    return found


def memory_table(measured: list[dict[str, str]]) -> str:
    """Returns a table of what was held at 10, 50 and 100 % of the epoch; of the last round."""
    lines = [
        "| contender | samples | workers at 10, 50, 100 %, MB | trainer at 10, 50, 100 %, MB |",
        "|---|---|---|---|",
    ]
    for (contender, case), runs in _found(measured, "memory").items():
        places = [runs[-1]["held"][place * memory.PLACES // 100 - 1] for place in (10, 50, 100)]
        workers, trainer = (", ".join(f"{at[who]:,.0f}" for at in places) for who in ("workers", "trainer"))
        told = f"{contender.replace('_', ' ')} | {int(case):,} | {workers} | {trainer}"
        lines.append(f"| {told} |")
    return "\n".join(lines)


def _shuffle(contender: str, size: int) -> str:
    if contender == "webdataset":
        return f"shards, and a buffer of {size:,} rows in each of 2 workers" if size else "in order"
    if size > 0:
        return f"`Window({size}, {size})`: {size * size:,} rows"
    return "`shuffle=True`" if size else "in order"


def shuffling_table(measured: list[dict[str, str]]) -> str:
    """Returns a table of quality against memory: medians of the rounds."""
    lines = [
        "| contender | shuffle | parts touched (whole: 40.6) | correlation | most held, MB | more than in order, MB |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    found = _found(measured, "shuffling")
    middle = {
        key: {name: statistics.median(run[name] for run in runs) for name in runs[0]} for key, runs in found.items()
    }
    for (contender, size), figures in middle.items():
        more = figures["megabytes"] - middle[contender, "0"]["megabytes"]
        quality = f"{figures['touched']:.1f} | {figures['correlation']:+.2f}"
        how = f"{contender} | {_shuffle(contender, int(size))}"
        lines.append(f"| {how} | {quality} | {figures['megabytes']:,.0f} | {more:+,.0f} |")
    return "\n".join(lines)


def kept_table(measured: list[dict[str, str]]) -> str:
    """Returns a table of what was held by a loop that keeps a part of every batch: medians of the rounds."""
    places = [str(place) for place in kept.PLACES]
    lines = [
        f"| the loop keeps | contender | trainer behind {', '.join(places)} batches, MB | the same, its worker, MB |",
        "|---|---|---|---|",
    ]
    for (contender, case), runs in _found(measured, "kept").items():
        trainer, worker = (
            ", ".join(f"{statistics.median(run['held'][place][who] for run in runs):,.0f}" for place in places)
            for who in ("trainer", "workers")
        )
        lines.append(f"| {case} | {contender} | {trainer} | {worker} |")
    return "\n".join(lines)


def publish(raw: Path) -> None:
    """Writes the blocks `held` and `kept` of docs/benchmark-figures.md from raw data and the JSON file beside it."""
    measured = read(raw)
    about = json.loads(raw.with_suffix(".json").read_text())
    told = (
        f"Measured on {about['time'][:10]} on {about['usable_cores']} cores with a load of {about['load_before']:.0f}. "
        f"{', '.join(f'{peer} {version}' for peer, version in about['peers'].items())}. "
        f"Raw data: `bench/results/{raw.name}`."
    )
    if _found(measured, "memory"):
        put("held", f"{told}\n\n{memory_table(measured)}\n\n{shuffling_table(measured)}")
    if _found(measured, "kept"):
        put("kept", f"{told}\n\n{kept_table(measured)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="memory,shuffling,kept")
    parser.add_argument("--only", default="", help="contenders, if not all")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--samples", type=int, default=10_000_000, help="of row memory")
    parser.add_argument("--publish", type=Path, help="write docs/benchmark-figures.md from this raw data")
    parser.add_argument("--into", type=Path, default=ROOT / "bench/results/held.csv", help="raw data")
    given = parser.parse_args()
    if given.publish:
        publish(given.publish)
        return
    into: Path = given.into
    only = [name for name in given.only.split(",") if name]
    measured = read(into)
    have = {(run["row"], run["round"], run["contender"], run["case"]) for run in measured}
    peers = {"peers": {peer: importlib.metadata.version(peer) for peer in PEERS if importlib.util.find_spec(peer)}}
    into.with_suffix(".json").write_text(json.dumps(describe() | peers, indent=1) + "\n")
    with tempfile.TemporaryDirectory() as folder, into.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not measured:
            writer.writeheader()
        for row, turn, contender, case in planned(given.rows.split(","), given.rounds, given.samples):
            if (row, turn, contender, case) in have or (only and contender not in only):
                continue
            figures = run(row, contender, case, Path(folder))
            done = dict(zip(COLUMNS, (row, turn, contender, case, figures), strict=True))
            measured.append(done)
            writer.writerow(done)
            file.flush()
            print(*done.values(), flush=True)


if __name__ == "__main__":
    main()
