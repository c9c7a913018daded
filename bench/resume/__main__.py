"""Stops an epoch over tar files, goes on in another process, with other workers and ranks too, and kills a worker.

    python -m bench.resume [--rounds N] [--only headrace,...] [--into FILE.csv] [--shards FOLDER]
    python -m bench.resume --publish FILE.csv       # the table of docs/benchmark-figures.md, from raw data

"First batch" is from the loaded state to the first batch, workers' start included, beside that of a pass from the
beginning. Samples are lost if no batch of the epoch had them, and repeated if two had.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.feed.publish import put
from bench.resume.contenders import BATCH, CONTENDERS, RANKED, ROW
from bench.shards.__main__ import run as in_environment
from bench.shards.__main__ import surroundings
from bench.shards.contenders import FORMS
from bench.shards.conversion import converted
from bench.shards.publish import surroundings as told_surroundings
from bench.shards.settings import RESULTS
from bench.shards.work import ROWS, prepare

from headrace import feed

SAMPLES = ROWS[ROW].shards * ROWS[ROW].samples
STEPS = SAMPLES // BATCH
WORKERS = 2
STOPS = (  # what; where it stops, in per cent; workers that go on; ranks until there
    ("resume at 1 %", 1, WORKERS, 1),
    ("resume at 50 %", 50, WORKERS, 1),
    ("resume at 99 %", 99, WORKERS, 1),
    ("at 50 % with 3 workers", 50, 3, 1),
    ("at 50 % on 1 rank of 2", 50, WORKERS, 2),
)
COLUMNS = ("round", "contender", "what", "first", "fresh", "longest", "bytes", "lost", "repeated", "error")
LIMIT = 300.0  # seconds of a process; one that lost a worker may wait for ever


def process(
    name: str, shards: Path, what: str, steps: int, kept: Path, workers: int = WORKERS, ranks: int = 1
) -> dict[str, str]:
    """Runs one process. Returns what it prints; of one that did not end, that."""
    try:
        return in_environment(
            name, "one_run", name, str(shards), str(workers), what, str(steps), str(kept), shards=shards,
            package="bench.resume", limit=LIMIT, ranks=ranks,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"still waiting after {LIMIT:.0f} s"}
    except subprocess.CalledProcessError as error:  # torch raises in a signal handler, wherever that may be
        return {"error": f"exit status {error.returncode}"}


def counted(kept: Path) -> tuple[int, int]:
    """Returns how many samples were lost, and repeated."""
    found = Counter(int(word) for path in kept.parent.glob(f"{kept.name}.*") for word in path.read_text().split())
    return SAMPLES - len(found), sum(count - 1 for count in found.values())


def measured(turn: int, name: str, shards: Path, folder: Path) -> list[dict[str, object]]:
    """Runs a contender through all of it."""
    rows: list[dict[str, object]] = []
    fresh = process(name, shards, "go_on", 0, folder / "fresh")
    lost, repeated = counted(folder / "fresh")
    common = {"round": turn, "contender": name, "fresh": fresh.get("first", "")}
    rows.append(common | {"what": "whole", "lost": lost, "repeated": repeated, "error": fresh["error"]})
    for what, share, workers, ranks in STOPS:
        if ranks > 1 and name not in RANKED:
            continue
        kept = folder / what.replace(" ", "-")
        before = process(name, shards, "save", STEPS * share // 100, kept, ranks=ranks)
        after = process(name, shards, "go_on", 0, kept, workers)
        lost, repeated = counted(kept)
        rows.append(common | {
            "what": what, "first": after.get("first", ""), "bytes": before.get("bytes", ""), "lost": lost,
            "repeated": repeated, "error": before["error"] or after["error"],
        })  # fmt: skip
    kept = folder / "kill"
    killed = process(name, shards, "kill", STEPS * 30 // 100, kept)
    lost, repeated = counted(kept)
    rows.append(common | {
        "what": "worker killed", "longest": killed.get("longest", ""), "lost": lost, "repeated": repeated,
        "error": killed["error"],
    })  # fmt: skip
    return rows


def table(rows: list[dict[str, str]]) -> str:
    """Returns the table of the page: medians; lost and repeated of the worst round."""
    lines = [
        "| contender | what | first batch, ms | from the beginning, ms | state, bytes | lost | repeated | ended with |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault((row["contender"], row["what"]), []).append(row)

    def middle(of: list[dict[str, str]], column: str, factor: float = 1.0) -> str:
        values = [float(row[column]) for row in of if row[column]]
        return f"{statistics.median(values) * factor:,.0f}" if values else ""

    for (name, what), of in found.items():
        lost, repeated = (max(int(row[column]) for row in of) for column in ("lost", "repeated"))
        figures = f"{middle(of, 'first', 1e3)} | {middle(of, 'fresh', 1e3)} | {middle(of, 'bytes')}"
        ends = ", ".join(sorted({row["error"] for row in of if row["error"]})) or "the epoch's end"
        lines.append(f"| {name.replace('_', ' ')} | {what} | {figures} | {lost:,} | {repeated:,} | {ends} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="contenders, if not all")
    parser.add_argument("--publish", type=Path, help="write docs/benchmark-figures.md from this raw data")
    parser.add_argument("--shards", type=Path, help="folder of shards and peers' forms; by default one that is removed")
    parser.add_argument("--into", type=Path, help="raw data (CSV); by default of this day, in bench/results")
    given = parser.parse_args()
    if given.publish:
        with given.publish.open() as file:
            about = told_surroundings(json.loads(given.publish.with_suffix(".json").read_text()), given.publish)
            block = f"{about}\n\n{table(list(csv.DictReader(file)))}"
        put("resume", block)
        return
    into: Path = given.into or RESULTS / f"resume-{time.strftime('%Y%m%d')}.csv"
    into.with_suffix(".json").write_text(json.dumps(surroundings(), indent=1) + "\n")
    names = [name for name in CONTENDERS if not given.only or name in given.only.split(",")]
    place = contextlib.nullcontext(given.shards) if given.shards else tempfile.TemporaryDirectory()
    with place as there, into.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        shards = prepare(ROW, Path(there))
        feed.tar(shards)  # the index
        for name in names:
            form = FORMS.get(name)
            if form and not converted(form, ROW, shards).exists():
                in_environment(name, "conversion", form, ROW, str(shards), shards=shards)
        for turn in range(given.rounds):
            for name in names:
                with tempfile.TemporaryDirectory() as kept:
                    for row in measured(turn, name, shards, Path(kept)):
                        writer.writerow(row)
                        file.flush()
                        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
