"""Each transport over six batch shapes; below half of the headline's target on any of them is a defect.

On the own host against torch's DataLoader on the same shape, over TCP against the raw socket loop on as many bytes.
"""

from __future__ import annotations

from dataclasses import replace

from bench.feed.contenders.headrace_loader import HeadraceTcp
from bench.feed.contenders.limits import RawSocket
from bench.feed.data import BATCH_IMAGES, IMAGE_BYTES, SHAPES, Shaped, payload, shaped
from bench.feed.figures import Figure, Records, rate
from bench.feed.measure import Bench, Contender
from bench.feed.rows.same_host import contenders
from bench.feed.settings import Settings

TITLE = "Every transport over six batch shapes"
HALF_OF_HEADLINE = {"shapes-shm19": 3.0, "shapes-shm150k": 5.0, "shapes-tcp19": 0.45}


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row."""
    bench.effort = replace(bench.effort, seconds=0.6 * bench.effort.seconds)  # so many windows
    small = bench.row == "shapes-shm150k"
    size = IMAGE_BYTES * (1 if small else bench.effort.scaled(BATCH_IMAGES))
    for shape, make in SHAPES.items():
        exact = payload(make(size))
        found: list[Contender]
        if bench.row == "shapes-tcp19":
            found = [RawSocket(exact), HeadraceTcp(shaped(shape=shape, size=size), 1, batch_size=None)]
        else:
            found = contenders(bench.row.removeprefix("shapes-"), Shaped(shape, size), settings)

        def check(batch: object, exact: int = exact) -> None:
            if not isinstance(batch, memoryview) and payload(batch) != exact:
                raise ValueError(f"a batch of {payload(batch)} bytes instead of {exact}")

        bench.interleave(found, exact, {shape: None}, check)


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    peer = "raw socket" if records.row == "shapes-tcp19" else "torch"
    return [
        records.ratio(
            f"headrace / {peer}, {shape}, throughput",
            "headrace",
            peer,
            rate,
            variant=shape,
            target=HALF_OF_HEADLINE[records.row],
        )
        for shape in records.variants()
    ]
