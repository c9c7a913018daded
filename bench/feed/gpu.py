"""A GPU that is fed: JPEG photographs to ResNet-50, by 4 workers alone and by 4 + 12, on a machine of 16 cores.

    python -m bench.feed.gpu [--device cuda] [--rounds 5] [--steps 100] [--batch 256] [--quick]

The trainer and 4 workers have the first 4 cores: local processes when they are alone, and the executors of a feed
server when another one, with 12 executors on the other 12 cores, is beside it; both are reached over TCP.

Each round measures, in this order, `steps` steps on one batch that stays on the device (`resident`), `steps` fed by
the 4 workers, `steps` fed by all 16. A figure is the step time over the resident one of the same round; at most 1.02
is the target where the input is no bottleneck. Before each window as many steps are taken as the loader may have
fetched ahead. Raw data go to bench/results/gpu-*.csv.

`--device cpu --quick` shows that it works, with tiny sizes, and says nothing about speed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from bench.feed import photographs
from bench.feed.resnet import resnet50
from bench.feed.servers import ROOT
from bench.feed.settings import RESULTS
from bench.feed.surroundings import describe
from torch import nn

from headrace.feed import DataLoader
from headrace.feed.bench.contenders import endless
from headrace.feed.bench.loopback import feed_server

LOCAL, REMOTE = 4, 12
PREFETCH = 2
TARGET = 1.02
COLUMNS = ("round", "contender", "steps", "batch", "seconds", "wait_seconds", "bytes")


class Trainer:
    """The training step.

    Args:
        device: where.
        shrink: factor by which images are made smaller first.
    """

    def __init__(self, device: torch.device, shrink: int) -> None:
        self.device = device
        self._shrink = shrink
        self._model: nn.Module = resnet50().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        self._loss = nn.CrossEntropyLoss()

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Trains on uint8 images (N, 3, H, W) and labels (N) of the device. Does not wait for it."""
        with torch.autocast(self.device.type, torch.bfloat16):
            inputs = (images.to(memory_format=torch.channels_last).float() - 120.0) / 60.0
            if self._shrink > 1:
                inputs = nn.functional.avg_pool2d(inputs, self._shrink)
            loss = self._loss(self._model(inputs), labels)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()

    def settle(self) -> None:
        """Waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def timed(self, batches: Iterator[Any], steps: int) -> float:
        """Returns the seconds that a number of steps take."""
        self.settle()
        begun = time.perf_counter()
        for _ in range(steps):
            self.step(*next(batches))
        self.settle()
        return time.perf_counter() - begun


@contextmanager
def on_cores(cores: Iterable[int]) -> Iterator[None]:
    """What is started in here runs on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cores) or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def same(batch: Any) -> Iterator[Any]:
    while True:
        yield batch


def measure(options: argparse.Namespace, stack: ExitStack) -> Iterator[dict[str, Any]]:
    """Yields the rows of the raw data."""
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    photographs.prepare(Path(directory))
    cores = sorted(os.sched_getaffinity(0))
    local, remote = (1, 1) if options.quick else (LOCAL, REMOTE)
    if len(cores) < local + remote:
        print(f"{local + remote} workers on {len(cores)} cores: the figures say little", file=sys.stderr)
    here, there = cores[:local], cores[local : local + remote]
    with on_cores(here):
        near = stack.enter_context(feed_server(local, code=ROOT))
    with on_cores(there):
        far = stack.enter_context(feed_server(remote, code=ROOT, secret_file=near.secret_file))
    stack.enter_context(on_cores(here))
    torch.set_num_threads(len(here))

    data = photographs.photographs(directory, options.batch * 10_000)
    common: dict[str, Any] = {"batch_size": options.batch, "shuffle": True, "seed": 1, "memory": 2 << 30}
    common |= {"prefetch_factor": PREFETCH, "device": options.device}
    both = f"{near.address},{far.address}"
    loaders = {
        f"{local} workers": DataLoader(data, num_workers=local, workers="local", **common),
        f"{local} + {remote} workers": DataLoader(data, workers=both, secret_file=near.secret_file, **common),
    }
    for loader in loaders.values():
        stack.enter_context(loader)
    trainer = Trainer(torch.device(options.device), 4 if options.quick else 1)
    fed = {name: endless(loader) for name, loader in loaders.items()}
    resident = same(next(fed[next(iter(fed))]))
    ahead = 1 if options.quick else PREFETCH * (local + remote)
    trainer.timed(resident, 1 if options.quick else 20)
    for number in range(options.rounds):
        for name, batches in (("resident", resident), *fed.items()):
            trainer.timed(batches, ahead)
            before = loaders[name].stats() if name in loaders else {}
            seconds = trainer.timed(batches, options.steps)
            after = loaders[name].stats() if name in loaders else {}
            wait, size = (after.get(key, 0) - before.get(key, 0) for key in ("wait_seconds", "bytes"))
            yield dict(zip(COLUMNS, (number, name, options.steps, options.batch, seconds, wait, size), strict=True))


def summary(rows: list[dict[str, Any]]) -> str:
    """Returns the step times over the resident ones of the same round: median, smallest, largest."""
    times: dict[str, dict[int, float]] = {}
    for row in rows:
        times.setdefault(row["contender"], {})[row["round"]] = row["seconds"] / row["steps"]
    resident = times.pop("resident")
    lines = [f"resident: {1000 * statistics.median(resident.values()):.1f} ms a step"]
    for name, own in times.items():
        ratios = [own[number] / resident[number] for number in own]
        line = f"{name}: {statistics.median(ratios):.3f} x resident [{min(ratios):.3f} .. {max(ratios):.3f}]"
        lines.append(f"{line}, {1000 * statistics.median(own.values()):.1f} ms a step; target {TARGET}")
    return "\n".join(lines)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--into", type=Path, help="CSV file; by default a new one in bench/results")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.batch = 2, 2, 4
    into = options.into or RESULTS / time.strftime("gpu-%Y%m%d-%H%M%S.csv", time.gmtime())
    facts = describe() | {"device": options.device, "arguments": sys.argv[1:]}
    if options.device.startswith("cuda"):
        facts["gpu"] = torch.cuda.get_device_name(options.device)
    rows = []
    with ExitStack() as stack, into.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in measure(options, stack):
            rows.append(row)
            writer.writerow(row)
            file.flush()
    into.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
    print(summary(rows))
    print(into)


if __name__ == "__main__":
    main()
