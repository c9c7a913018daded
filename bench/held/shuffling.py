"""How well an epoch is shuffled, and the memory that this takes: 10,000 rows of 20,000 bytes in 20 tar files.

`python -m bench.held.shuffling NAME FOLDER BUFFER` prints one JSON object; NAME is `headrace`, with a window of as many
runs as rows of each (0: in order, -1: `shuffle=True`), or `webdataset`, with a buffer of so many rows in each worker
and its shards shuffled (0: in order).

touched: of 64 equal parts of the data, those that a batch of 64 has rows of, on average; a whole shuffle has 40.6.
correlation: of the numbers of rows that follow each other; a whole shuffle has 0.
megabytes: the most that was held, trainer and workers, at 20 places of the epoch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.held.footprint import held
from bench.held.rows import number

from headrace import feed

SHARDS, ROWS, SIZE = 20, 500, 20_000
BATCH, WORKERS, PARTS, PLACES = 64, 2, 64, 20
Opened = AbstractContextManager[Iterable[Any]]
SIZES = {"headrace": (0, 16, 32, 64, -1), "webdataset": (0, 100, 1000, 4000)}


def numbered(sample: Any) -> tuple[torch.Tensor, int]:
    """A row as a tensor, with its number."""
    return torch.from_numpy(np.frombuffer(sample["bin"], np.uint8).copy()), number(sample)


def headrace(folder: Path, size: int) -> Opened:
    order = feed.Window(size, size) if size > 0 else size < 0
    return feed.DataLoader(feed.tar(folder).map(numbered), BATCH, order, seed=1, num_workers=WORKERS)


def webdataset(folder: Path, size: int) -> Opened:
    import webdataset as library

    urls = [str(path) for path in sorted(folder.glob("*.tar"))]
    dataset = library.WebDataset(urls, shardshuffle=100 if size else False, seed=1)
    rows = (dataset.shuffle(size, seed=1) if size else dataset).map(numbered)
    return nullcontext(torch.utils.data.DataLoader(rows, BATCH, num_workers=WORKERS))


CONTENDERS = {each.__name__: each for each in (headrace, webdataset)}


def quality(batches: list[list[int]], rows: int) -> dict[str, float]:
    """Returns `touched` and `correlation` of an epoch's batches of row numbers."""
    whole = [batch for batch in batches if len(batch) == BATCH]
    touched = [len({at * PARTS // rows for at in batch}) for batch in whole]
    order = np.concatenate([np.asarray(batch) for batch in batches])
    return {"touched": float(np.mean(touched)), "correlation": float(np.corrcoef(order[:-1], order[1:])[0, 1])}


def main() -> None:
    name, folder, size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    batches, most, rows = [], 0.0, SHARDS * ROWS
    with CONTENDERS[name](folder, size) as loader:
        for step, (_, numbers) in enumerate(loader):
            batches.append([int(each) for each in numbers])
            if step % (rows // BATCH // PLACES) == 0:
                most = max(most, sum(held()))
    assert sorted(at for batch in batches for at in batch) == list(range(rows)), "not every row came once"
    print(json.dumps(quality(batches, rows) | {"megabytes": most}))


if __name__ == "__main__":
    main()
