"""Takes batches for some seconds and writes how many came, and what CPU time that took: the same for all contenders.

The CPU time is that of all processes below the measuring one: of the service, its keepers, and this one.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import psutil
from pipelines import BATCH_BYTES, ROWS, numpy_pipeline, tf_pipeline

WARM_UP = 1.5


def cpu_seconds(root: int) -> float:
    """Returns the CPU seconds of the processes below one, those that have ended among them not counted."""
    total = 0.0
    for process in psutil.Process(root).children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def batches(options: argparse.Namespace, row: str) -> Any:
    """Returns a row's batches, as the contender makes them."""
    import tensorflow as tf

    if options.contender == "feed":
        import headrace.tensorflow

        pipeline = numpy_pipeline(row=row, directory=options.data)
        return headrace.tensorflow.feed(
            pipeline, ROWS[row], drop_last=True, workers=options.service, secret_file=options.secret
        )
    ds = tf_pipeline(row, options.data)
    if options.contender == "managed":
        import headrace.tensorflow

        return headrace.tensorflow.distribute(ds, row, compression=None, max_outstanding_requests=options.outstanding)
    service = tf.data.experimental.service.distribute(
        tf.data.experimental.service.ShardingPolicy.DYNAMIC,
        options.service,
        job_name=row,
        compression=None,
        max_outstanding_requests=options.outstanding,
    )
    return ds.apply(service)


def measure(options: argparse.Namespace, row: str) -> dict[str, Any]:
    """Returns what one row gave."""
    found = iter(batches(options, row))
    begun = time.perf_counter()
    next(found)
    first = time.perf_counter() - begun
    while time.perf_counter() - begun - first < WARM_UP:
        next(found)
    begun, cpu, count = time.perf_counter(), cpu_seconds(options.root), 0
    while time.perf_counter() - begun < options.seconds:
        next(found)
        count += 1
    seconds, cpu = time.perf_counter() - begun, cpu_seconds(options.root) - cpu
    return {
        "contender": options.contender, "row": row, "batches": count, "bytes": count * BATCH_BYTES[row],
        "seconds": seconds, "cpu_seconds": cpu, "first_batch_seconds": first,
    }  # fmt: skip


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contender", choices=["managed", "by hand", "feed"], required=True)
    parser.add_argument("--service", default="", help="address; the managed one's is found")
    parser.add_argument("--secret", help="of the feed servers")
    parser.add_argument("--data", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--outstanding", type=int, default=8)
    parser.add_argument("--root", type=int, required=True, help="process whose descendants are measured")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    options.result.write_text(json.dumps([measure(options, row) for row in ROWS]))


if __name__ == "__main__":
    main()
