"""Measures what one batch costs on one core: P, preprocessing, and T, training, in CPU seconds.

    python measure.py [--cpu 0] [--batches 8]

Prints one JSON object. The ideal speed-up of adding a second core for the data workers follows from it: with one core a
step takes P + T; with two it cannot take less than T, nor less than half of all the work.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "code"))


def cpu_seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Returns the CPU seconds of each of several calls, after one that warms up."""
    work()
    times = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return times


def ideal(preprocessing: float, training: float) -> float:
    """Returns the ideal ratio of step times: (P + T) / max(T, (P + T) / 2)."""
    total = preprocessing + training
    return total / max(training, total / 2)


def measure(batches: int, batch_size: int) -> dict[str, float]:
    """Returns medians of P and T in CPU seconds a batch, and the ideal ratio."""
    import torch
    import torch.nn.functional as F

    from digits import Digits
    from model import Net

    torch.set_num_threads(1)
    dataset = Digits(HERE / "data", train=True)

    def prepare() -> tuple[torch.Tensor, torch.Tensor]:
        samples = [dataset[i] for i in range(batch_size)]
        return torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])

    images, labels = prepare()
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())

    def train() -> None:
        optimizer.zero_grad()
        loss = F.nll_loss(net(images), labels)
        loss.backward()
        optimizer.step()
        loss.item()

    p = statistics.median(cpu_seconds(prepare, batches))
    t = statistics.median(cpu_seconds(train, batches))
    return {"preprocessing": p, "training": t, "ideal_ratio": ideal(p, t)}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", type=int, default=0)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=64)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.cpu})
    print(json.dumps(measure(options.batches, options.batch_size)))


if __name__ == "__main__":
    main()
