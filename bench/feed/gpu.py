"""A GPU that is fed: images to ResNet-50 on a machine of 16 cores, by headrace and by torch's DataLoader.

    python -m bench.feed.gpu [--device cuda] [--rounds 4] [--steps 40] [--batch 256] [--quick]

The trainer and 4 workers have the first 4 cores. Two kinds of input: *ready* images, which lie decoded in memory, so
that workers only collate them and the input is no bottleneck; and *photographs*, JPEG that is decoded and augmented.
headrace puts batches on the device (`device=`); torch's loader page-locks them, and the loop copies them without
waiting, as its users do. In the last contender another feed server, with 12 executors on the other 12 cores, stands
beside one with 4 on the first 4: a heterogeneous cluster of two hosts. Both are reached over TCP.

Each round measures `steps` steps on one batch that stays on the device (`resident`), and `steps` fed by each contender
in turn. A figure is the step time over the resident one of the same round; at most 1.02 is the target where the input
is no bottleneck. Before each window as many steps are taken as the loader may have fetched ahead. Raw data go to
bench/results/gpu-*.csv.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from bench.feed import photographs
from bench.feed.resnet import resnet50
from bench.feed.servers import ROOT
from bench.feed.settings import RESULTS
from bench.feed.surroundings import describe
from torch import nn

from headrace.feed import DataLoader
from headrace.measuring.loopback import feed_server
from headrace.measuring.windows import endless

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


class Ready:
    """The photographs as uint8 tensors of (3, 224, 224) that lie in memory, with a label.

    Args:
        directory: of the files.
        count: rows.
    """

    def __init__(self, directory: str, count: int) -> None:
        decoded = photographs.Photographs(directory, photographs.FILES)
        self.images = [decoded[number][0] for number in range(photographs.FILES)]
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.images[index % len(self.images)], index % 1000


class Contender(NamedTuple):
    """What feeds the trainer: its batches, how many it may have fetched ahead, and its statistics if it has some."""

    batches: Iterator[Any]
    ahead: int
    stats: Callable[[], Mapping[str, Any]] = dict


def same(batch: Any) -> Iterator[Any]:
    while True:
        yield batch


def through_torch(data: Any, batch: int, workers: int, device: str) -> Iterator[Any]:
    """Yields the batches of torch's loader on a device, epoch after epoch."""
    loader: Any = torch.utils.data.DataLoader(
        data,
        batch,
        shuffle=True,
        num_workers=workers,
        prefetch_factor=PREFETCH,
        persistent_workers=True,
        pin_memory=device.startswith("cuda"),
    )
    while True:
        for images, labels in loader:
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def contenders(options: argparse.Namespace, directory: str, stack: ExitStack) -> dict[str, Contender]:
    """Starts whoever feeds, in the order in which they are measured. The trainer is left on the first cores."""
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

    rows = options.batch * 10_000
    kinds: dict[str, Any] = {"ready": Ready(directory, rows), "photographs": photographs.photographs(directory, rows)}
    common: dict[str, Any] = {"batch_size": options.batch, "shuffle": True, "seed": 1, "memory": 2 << 30}
    common |= {"prefetch_factor": PREFETCH, "device": options.device}
    found: dict[str, Contender] = {}
    for kind, data in kinds.items():
        loader = stack.enter_context(DataLoader(data, num_workers=local, workers="local", **common))
        found[f"{kind}, headrace, {local} workers"] = Contender(endless(loader), PREFETCH * local, loader.stats)
        own = photographs.Photographs(directory, rows) if kind == "photographs" else data
        batches = through_torch(own, options.batch, local, options.device)
        found[f"{kind}, torch, {local} workers"] = Contender(batches, PREFETCH * local)
    both = f"{near.address},{far.address}"
    loader = stack.enter_context(DataLoader(data, workers=both, secret_file=near.secret_file, **common))
    name = f"photographs, headrace, {local} + {remote} workers"
    return found | {name: Contender(endless(loader), PREFETCH * (local + remote), loader.stats)}


def measure(options: argparse.Namespace, stack: ExitStack) -> Iterator[dict[str, Any]]:
    """Yields the rows of the raw data."""
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    photographs.prepare(Path(directory))
    fed = contenders(options, directory, stack)
    trainer = Trainer(torch.device(options.device), 4 if options.quick else 1)
    resident = same(next(next(iter(fed.values())).batches))
    trainer.timed(resident, 1 if options.quick else 20)
    for each in fed.values():  # nobody's workers start in a window
        trainer.timed(each.batches, 1 if options.quick else each.ahead)
    for number in range(options.rounds):
        for name, (batches, ahead, stats) in ({"resident": Contender(resident, 3)} | fed).items():
            trainer.timed(batches, 1 if options.quick else ahead)
            before = stats()
            seconds = trainer.timed(batches, options.steps)
            after = stats()
            wait, size = (after[key] - before[key] if before else None for key in ("wait_seconds", "bytes"))
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
        target = f"; target {TARGET}" if name.startswith("ready, headrace") else ""
        lines.append(f"{line}, {1000 * statistics.median(own.values()):.1f} ms a step{target}")
    return "\n".join(lines)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
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
