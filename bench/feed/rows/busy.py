"""The trainer's main thread busy in Python between `next()` calls, against the same time asleep.

The pause after every batch is about as long as the contender needs for a batch, so a loader that goes on while the
trainer works hides one behind the other, and one that needs the trainer's interpreter does not. Where the
machine has few cores, the busy thread also takes one of them away: both loaders pay that.
"""

from __future__ import annotations

import time
from typing import Any

from bench.feed.contenders.headrace_loader import HeadraceTcp
from bench.feed.data import BATCH_IMAGES, IMAGE_BYTES, Shaped, shaped
from bench.feed.figures import Figure, Records, rate
from bench.feed.measure import Bench, Contender, Running
from bench.feed.rows.same_host import contenders
from bench.feed.settings import Settings

TITLE = "The same transports while the trainer's main thread runs Python"
WORK = {"shm 19 MB": BATCH_IMAGES, "shm 150 KB": 1, "tcp 19 MB": BATCH_IMAGES}


def pauses(seconds: float) -> dict[str, Any]:
    """Returns what the trainer does after every batch, by variant: it sleeps, or it computes, for the same time."""

    def idle(_batch: object) -> None:
        time.sleep(seconds)

    def busy(_batch: object) -> None:
        end = time.perf_counter() + seconds
        total = 0
        while time.perf_counter() < end:
            for number in range(50):
                total += number

    return {"idle": idle, "busy": busy}


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    for work, images in WORK.items():
        size = IMAGE_BYTES * (bench.effort.scaled(images))
        found: list[Contender]
        if work.startswith("tcp"):
            found = [HeadraceTcp(shaped(shape="one tensor", size=size), 1, batch_size=None)]
        else:
            row = "shm19" if work == "shm 19 MB" else "shm150k"
            found = contenders(row, Shaped("one tensor", size), settings)
        for contender in found:
            period = period_of(contender, bench)
            ways = {f"{work}, {way}": pause for way, pause in pauses(period).items()}
            bench.interleave([contender], size, ways)


def period_of(contender: Contender, bench: Bench) -> float:
    """Returns how long a contender needs for a batch when nothing hinders it, seconds."""
    running = Running(contender, bench.effort)
    try:
        told = running.window()
    finally:
        running.close()
    return float(told["seconds"] / told["batches"])


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    found = []
    for work in WORK:
        for contender in ("headrace", "torch"):
            if contender == "torch" and work.startswith("tcp"):
                continue
            found.append(
                records.ratio(
                    f"{contender}, {work}: throughput busy / idle",
                    contender,
                    contender,
                    rate,
                    variant=f"{work}, busy",
                    peer_variant=f"{work}, idle",
                    target=0.8 if contender == "headrace" else None,
                )
            )
    return found
