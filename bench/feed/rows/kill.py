"""SIGKILL of one of four workers, at a random instant of a steady stream: the longest wait in `next()` after it.

A slice (here one batch) takes 100 ms of sleep, so a stream of four workers gives one every 25 ms. Batches tell which
process made them, so that one can be killed; two workers would differ in that, so they are not compared.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil
from bench.feed.contenders.headrace_loader import HeadraceLoader, HeadraceTcp
from bench.feed.figures import Figure, Records
from bench.feed.measure import Bench, Contender
from bench.feed.settings import Settings
from bench.feed.sleeping import Sleeper, sleeper

TITLE = "SIGKILL of one of four workers: longest stall in next()"
WORKERS, SLICE = 4, 0.1
SEED = 11
RECOVERED = 20 * WORKERS  # batches after the kill within which the stall must lie


def longest(batches: Iterator[Any], count: int) -> tuple[float, set[int]]:
    """Takes batches. Returns the longest wait, seconds, and the process ids of the workers that made them."""
    waited, pids = 0.0, set()
    for _ in range(count):
        begun = time.perf_counter()
        batch = next(batches)
        waited = max(waited, time.perf_counter() - begun)
        pids.add(int(batch[0]))
    return waited, pids


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    draw = random.Random(SEED)
    contenders: dict[str, Contender] = {
        "local workers": HeadraceLoader(Sleeper(SLICE), batch_size=None, num_workers=WORKERS, verify=0.0),
        "feed server over TCP": HeadraceTcp(sleeper(seconds=SLICE), WORKERS, batch_size=None, verify=0.0),
    }
    for variant, contender in contenders.items():
        try:
            batches = contender.open()
            longest(batches, 4 * WORKERS)  # until all have started
            for repeat in range(bench.effort.repeats):
                usual, pids = longest(batches, 4 * WORKERS)
                time.sleep(draw.uniform(0, SLICE))
                alive = sorted(
                    pid for pid in pids if psutil.pid_exists(pid)
                )  # batches of the one killed before may remain
                os.kill(draw.choice(alive), signal.SIGKILL)
                stall, _ = longest(batches, RECOVERED)
                told = json.dumps({"slice_seconds": SLICE, "longest_before": usual, "workers": WORKERS})
                bench.keep(variant, "headrace", repeat, batches=1, seconds=stall, settings=told)
        finally:
            contender.close()


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    return [
        records.value(
            f"longest stall, {variant}",
            "headrace",
            lambda record: record.seconds,
            " s",
            variant=variant,
            target=0.5 + 2 * SLICE,
            better="less",
        )
        for variant in records.variants()
    ]
