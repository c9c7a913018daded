"""From construction to the first batch, on a dataset of 1.2 million (path, label) pairs, 2 workers, shuffled.

Every measurement is a fresh process. What the workers need to import the user's modules (torch included) is taken off
where the start method makes them import it.
"""

from __future__ import annotations

import json
import subprocess
import sys

from bench.feed.figures import Figure, Records
from bench.feed.measure import Bench
from bench.feed.records import Record
from bench.feed.servers import ROOT
from bench.feed.settings import Settings

TITLE = "First batch after construction, 1.2 million samples"
SAMPLES = 1_200_000
SEEDED = "headrace, seed="  # its own order instead of torch's sampler
LOADERS = {"fork": ("torch", "headrace", SEEDED), "spawn": ("torch", "headrace")}


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    samples = str(bench.effort.scaled(SAMPLES))
    for repeat in range(bench.effort.repeats):
        for method, names in LOADERS.items():
            for name in names:
                command = [sys.executable, "-m", "bench.feed.programs.first_batch", method, samples, name]
                told = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT, timeout=120).stdout
                figures = json.loads(told)
                seconds = figures.pop("seconds")
                bench.keep(method, name, repeat, batches=1, seconds=seconds, settings=json.dumps(figures))


def _seconds(record: Record) -> float:
    return record.seconds


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    found = []
    for method, names in LOADERS.items():
        for ours in names[1:]:
            target = None if ours == SEEDED else 0.5
            name = f"{ours} / torch, time to the first batch, {method}"
            found.append(records.ratio(name, ours, "torch", _seconds, variant=method, target=target, better="less"))
        for name in names[:2]:
            found.append(records.value(f"{name}, {method}", name, _seconds, " s", variant=method, better="less"))
    return found
