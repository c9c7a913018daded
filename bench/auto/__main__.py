"""`num_workers="auto"` against a hand sweep, on six pipelines.

    python -m bench.auto --output bench/results/auto-DATE.jsonl
    python -m bench.auto --publish bench/results/auto-DATE.jsonl      # table and picture of docs/benchmark-figures.md
    python -m bench.auto --only sleepy --workers 1,2,4 --seconds 5 --settle 10 --rounds 1 --pairs 0     # a look

Each round runs, for each pipeline, every number of the sweep and "auto", in an order of its own. Then come `--pairs`
more rounds of two runs each, "auto" and the number that was best in the sweep, one right after the other. A run takes
batches for `--settle` seconds that do not count (for "auto" the time in which it finds its number; for the others as
long as they need to start: a tenth of it) and then counts for `--seconds`. The trainer does nothing but take, so that
the fastest number wins. The pipeline jpeg needs Pillow (`make bench-feed` makes .venv-bench, which has it). Raw data:
one JSON object a run, also where "auto" loses. The table shows medians over the rounds: rows a second of the best
number (best in the median of the sweep), of "auto", their ratio within a round, and the numbers that "auto" had in
the end.

    jpeg        a photograph-like JPEG of 320 x 320, decoded and cropped with Pillow
    tokens      a text of 400 words, cut by a regular expression and looked up in a vocabulary
    mapped      64 rows of 8 KB at random places of a file mapped into memory
    sleepy      5 ms of sleep in each sample, as for a network
    augment     an image of 96 x 96: flipped, rolled, with noise, normalised, in NumPy
    arrays      a batch of four arrays of 4.8 MB
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.auto.pipelines import PIPELINES, Made
from bench.auto.publish import AUTO, best_number, publish, table

from headrace import feed

SWEEP = (1, 2, 4, 8, 16)


def run(data: Made, batch: int, workers: int | str, settle: float, seconds: float) -> dict[str, Any]:
    """Returns the rows a second of one run, and what "auto" chose."""
    made = time.monotonic()
    with feed.DataLoader(data, batch, num_workers=workers, seed=1, collate_fn=feed.stack_arrays) as loader:  # type: ignore[arg-type]
        batches = iter(loader)
        next(batches)
        begun = time.monotonic()
        quiet = begun + (settle if workers == AUTO else settle / 10)
        while time.monotonic() < quiet:
            next(batches)
        taken = 0
        since = time.monotonic()
        while (now := time.monotonic()) < since + seconds:
            next(batches)
            taken += batch
        stats = loader.stats()
        tuning = stats["tuning"]
        return {
            "ended": time.monotonic() - made,
            "rows_per_second": taken / (now - since),
            "executors": stats["executors"],
            "because": tuning["because"].value if tuning is not None else None,
            "changes": [[*change[:3], change.because.value] for change in tuning["changes"]] if tuning else None,
            "load": os.getloadavg()[0],
        }


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="of the whole sweep")
    parser.add_argument("--pairs", type=int, default=5, help="rounds of the best number and auto alone")
    parser.add_argument("--seconds", type=float, default=10.0, help="that count, of each run")
    parser.add_argument("--settle", type=float, default=40.0, help='seconds before, for "auto"; a tenth for a number')
    parser.add_argument("--workers", default=",".join(map(str, SWEEP)), help="numbers of the sweep")
    parser.add_argument("--only", default=",".join(PIPELINES), help="pipelines")
    parser.add_argument("--output", type=Path, help="file for the raw data, which it appends to")
    parser.add_argument("--publish", type=Path, help="write docs/benchmark-figures.md and its picture from raw data")
    options = parser.parse_args()
    if options.publish:
        publish(options.publish)
        return
    sweep: list[int | str] = [*map(int, options.workers.split(",")), AUTO]
    machine = {
        "cpus": len(os.sched_getaffinity(0)), "python": platform.python_version(), "kernel": platform.release(),
        "time": time.strftime("%Y-%m-%d", time.gmtime()),
    }  # fmt: skip
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds + options.pairs):
            swept = number < options.rounds
            for name in options.only.split(","):
                data, batch = PIPELINES[name](Path(folder))
                chosen = sweep if swept else [best_number([each for each in runs if each["pipeline"] == name]), AUTO]
                for workers in random.Random(f"{number} {name}").sample(chosen, len(chosen)):
                    found = run(data, batch, workers, options.settle, options.seconds)
                    about = {"pipeline": name, "round": number, "swept": swept, "workers": workers}
                    runs.append(about | machine | found)
                    print(json.dumps(runs[-1]), flush=True)
                    if options.output is not None:
                        with options.output.open("a") as file:
                            file.write(json.dumps(runs[-1]) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
