"""What it costs to bring one batch from another host: measured on loopback, with the feed itself.

    python -m headrace.measuring.transfer --batch FILE

FILE holds a batch's description (see `batches.describe`). A real feed server is started on 127.0.0.1, one executor
serves a ready batch of that very shape, and a real loader takes batches through TCP. One JSON object is printed:

    {"batches": 64, "bytes": 19267584, "seconds": 0.011, "trainer_cpu": 0.009, "worker_cpu": 0.008}

Lines before it, each a text as JSON, say what is waited for now.

`seconds` is wall time per batch; `trainer_cpu` are CPU seconds per batch of the loader's process and its receiver;
`worker_cpu` those of the feed server and its executor. On loopback both ends share this machine's cores and no wire
limits them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from headrace.feed.pipelines.factory import Pipeline, pipeline
from headrace.measuring.facts import bytes_of
from headrace.measuring.loopback import cpu_seconds, feed_server

WARM_UP = 4
MEASURE_SECONDS = 1.0
LEAST, MOST = 8, 512
START_SECONDS = 60.0
READY = "headrace.measuring.transfer:ready"  # this module runs under another name


def make(node: list[Any]) -> Any:
    """Makes a batch of a description. Objects that cannot travel become None."""
    kind, value = node[0], node[1]
    if kind == "t":
        import torch

        return torch.ones(node[2], dtype=torch.uint8).to(getattr(torch, value))
    if kind == "a":
        return np.ones(node[2], np.dtype(value)) if np.dtype(value).kind in "biufc" else np.zeros(node[2], value)
    if kind in ("s", "b"):
        return "x" * value if kind == "s" else b"x" * value
    if kind == "d":
        return {key: make(item) for key, item in value.items()}
    if kind == "l":
        return [make(item) for item in value]
    return value if kind == "v" else None


class Ready:
    """A dataset whose every sample is the same ready batch."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        return self._batch


@pipeline
def ready(path: str) -> Ready:
    """The pipeline that the feed server opens: a batch as `path` describes it."""
    return Ready(make(json.loads(Path(path).read_text())))


def measure(batch: Path) -> dict[str, float]:
    """Measures. Raises FeedError when the batch cannot travel."""
    from headrace.feed.loader.data_loader import DataLoader

    _stage("its feed server starts (it imports torch)")
    with (
        feed_server(1) as server,
        DataLoader(
            Pipeline(READY, {"path": str(batch)}),
            batch_size=None,
            workers=server.address,
            secret_file=server.secret_file,
            seed=0,
            stall_timeout=START_SECONDS,
            name="transfer",
        ) as loader,
    ):
        _stage("the first batch comes from that server")
        batches = iter(loader)
        size = bytes_of(next(batches))
        for _ in range(WARM_UP):
            next(batches)
        _stage("batches come, for about a second")
        far = [server.process, *server.process.children(recursive=True)]
        me = psutil.Process()
        near = [me, *(child for child in me.children(recursive=True) if child not in far)]
        began, near_began, far_began = time.perf_counter(), cpu_seconds(near), cpu_seconds(far)
        count = 0
        while count < LEAST or (count < MOST and time.perf_counter() - began < MEASURE_SECONDS):
            next(batches)
            count += 1
        seconds = time.perf_counter() - began
        near_cpu, far_cpu = cpu_seconds(near) - near_began, cpu_seconds(far) - far_began
        del batches
    return {
        "batches": count,
        "bytes": size,
        "seconds": seconds / count,
        "trainer_cpu": near_cpu / count,
        "worker_cpu": far_cpu / count,
    }


def _stage(words: str) -> None:
    print(json.dumps(words), flush=True)


def main() -> int:
    """Entry point of the module. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=Path, required=True, help="file with the description of the batch")
    print(json.dumps(measure(parser.parse_args().batch)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
