"""The peers over their settings: what the rows run them at is the best of what is kept from here.

torch's DataLoader is measured in whole epochs, from `iter()` to the last batch, over workers, `prefetch_factor` and
`persistent_workers`, because the last shows only there; the others in windows, as in the rows. The rows take the best
at the row's own number of workers; the other numbers of workers are kept to look at.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.feed import records
from bench.feed.data import BATCH_IMAGES, IMAGE_BYTES, Shaped, Small
from bench.feed.measure import Bench, Contender, Effort
from bench.feed.rows import small_samples
from bench.feed.settings import RESULTS, variant_of
from torch.utils.data import DataLoader

WORKERS, PREFETCH, EPOCHS = (1, 2, 4), (2, 4, 8, 16), 3


def sweep(rows: Sequence[str], effort: Effort, into: Path | None = None) -> int:
    """Sweeps the peers of some rows. Returns the exit code.

    Args:
        rows: rows; those without a peer that has settings are passed over.
        effort: how long.
        into: CSV; by default one in bench/results, where the next runs look.
    """
    RESULTS.mkdir(exist_ok=True)
    into = into or RESULTS / f"feed-sweep-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.csv"
    for row in rows:
        bench = Bench(row, effort)
        with tempfile.TemporaryDirectory(prefix="feed-bench-") as directory:
            _sweep_row(bench, Path(directory))
        if bench.records:
            records.write(into, bench.records)
    if into.exists():
        print(f"kept in {into}")
    return 0


def _sweep_row(bench: Bench, directory: Path) -> None:
    size = IMAGE_BYTES * bench.effort.scaled(BATCH_IMAGES)
    scaled = bench.effort.scaled
    if bench.row == "shm19":
        _torch(bench, Shaped("one tensor", size, scaled(20, 3)), size, batch_size=None)
    elif bench.row == "shm150k":
        _torch(bench, Shaped("one tensor", IMAGE_BYTES, scaled(1000, 3)), IMAGE_BYTES, batch_size=None)
    elif bench.row == "small64":
        batches = scaled(400, 3)
        dataset = Small(batches * small_samples.ROWS)
        _torch(bench, dataset, small_samples.BATCH_BYTES, batch_size=small_samples.ROWS, shuffle=True)
    elif bench.row == "jpeg":
        from bench.feed.photographs import SIZE, Photographs, prepare

        prepare(directory)
        rows = scaled(32, 4)
        photographs = Photographs(str(directory), rows * 8)
        _torch(bench, photographs, rows * (3 * SIZE * SIZE + 8), batch_size=rows, shuffle=True)
    elif bench.row == "tcp19":
        from bench.feed.contenders.grpc_stream import GrpcStream

        _windows(bench, size, [GrpcStream(size, queue=queue) for queue in (False, True)])
    elif bench.row == "services":
        from bench.feed.contenders.ray_data import RayData
        from bench.feed.contenders.tf_service import TfService

        _windows(bench, size, [TfService(size, max_outstanding_requests=number) for number in (2, 4, 8, 16)])
        _windows(bench, size, [RayData(size, prefetch_batches=number) for number in (1, 2, 4)])


def _torch(bench: Bench, dataset: Any, batch_bytes: int, **options: Any) -> None:
    """Sweeps torch's DataLoader, in whole epochs."""
    for workers, prefetch, persistent in itertools.product(WORKERS, PREFETCH, (True, False)):
        chosen = {"prefetch_factor": prefetch, "persistent_workers": persistent}
        loader: DataLoader[Any] = DataLoader(dataset, num_workers=workers, **chosen, **options)
        for epoch in range(EPOCHS):
            begun = time.perf_counter()
            batches = sum(1 for _ in loader)
            bench.keep(
                variant_of(workers),
                "torch",
                epoch,
                batches=batches,
                bytes=batches * batch_bytes,
                seconds=time.perf_counter() - begun,
                settings=json.dumps(chosen),
            )
        del loader


def _windows(bench: Bench, size: int, contenders: Sequence[Contender]) -> None:
    """Sweeps other peers, one setting after the other, in windows as in the rows."""
    for contender in contenders:
        bench.interleave([contender], size, {variant_of(1): None})
