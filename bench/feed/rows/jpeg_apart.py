"""The pipeline of the row jpeg, with trainer and data workers on cores of their own, as on two hosts.

One core makes the batches: with a worker of the loader, or with a feed server and its executor. Another one has the
trainer, and the receiver of what comes through TCP. So what the wire costs on the data host is told apart from what it
costs where the training runs.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.feed.contenders.headrace_loader import HeadraceLoader, HeadraceTcp
from bench.feed.figures import Figure, Records, rate
from bench.feed.measure import Bench
from bench.feed.photographs import SIZE, Photographs, photographs, prepare
from bench.feed.servers import ROOT
from bench.feed.settings import Settings

from headrace.feed import DataLoader
from headrace.measuring.loopback import feed_server
from headrace.measuring.windows import endless

TITLE = "The same pipeline with 1 worker on one core, and the trainer (and the receiver) on another"
COUNT = 1 << 20


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Has this thread, and the processes that it starts, run on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class LocalApart(HeadraceLoader):
    """headrace's loader, whose worker has a core of its own.

    Attributes:
        core: that core.
    """

    core: int

    def open(self) -> Iterator[Any]:
        stream = super().open()
        with on_core(self.core):
            first = next(stream)  # it starts the worker
        return itertools.chain([first], stream)


class TcpApart(HeadraceTcp):
    """headrace's loader over TCP to a feed server that has a core of its own.

    Attributes:
        core: that core.
    """

    name = "headrace, TCP"
    core: int

    def open(self) -> Iterator[Any]:
        options = dict(self.settings)
        with on_core(self.core):
            server = self.resources.enter_context(feed_server(options.pop("executors"), code=ROOT))
        loader = DataLoader(self._dataset, workers=server.address, secret_file=server.secret_file, **options)
        return endless(self.resources.enter_context(loader))


def run(bench: Bench, settings: Settings) -> None:
    """Measures the row. Raises RuntimeError on one core."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError("this row needs two cores")
    LocalApart.core = TcpApart.core = cores[0]
    rows = bench.effort.scaled(32, least=4)
    bench.effort = replace(bench.effort, seconds=8 * bench.effort.seconds, settle=3 * bench.effort.settle)
    shared: dict[str, Any] = {"batch_size": rows, "shuffle": True, "seed": 7}
    with tempfile.TemporaryDirectory(prefix="feed-bench-") as directory:
        prepare(Path(directory))
        found = [
            LocalApart(Photographs(directory, COUNT), **shared, num_workers=1),
            TcpApart(photographs(directory=directory, count=COUNT), 1, **shared),
        ]
        with on_core(cores[1]):
            bench.interleave(found, rows * (3 * SIZE * SIZE + 8))


def figures(records: Records) -> list[Figure]:
    """Returns the lines of the table."""
    tcp = TcpApart.name
    return [
        records.ratio("headrace through TCP / headrace, throughput", tcp, "headrace", rate, target=0.97),
        records.ratio(
            "headrace through TCP / headrace, CPU of all processes",
            tcp,
            "headrace",
            lambda record: record.cpu_per_gb,
            better="less",
        ),
        records.value("headrace", "headrace", rate, " batches/s"),
    ]
