"""Memory of trainer and workers over an epoch of many cheap samples, 2 workers, batches of 1,000, shuffled.

`python -m bench.held.memory NAME FOLDER SAMPLES` prints one JSON object: what was held at each of 20 places.
`list` datasets are a Python list of strings: pytorch#13246, whose workers copy the pages that hold the counts of
references. `headrace` reads Parquet files.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from bench.held.footprint import held

from headrace import feed

BATCH, WORKERS, PLACES = 1000, 2, 20
Opened = AbstractContextManager[Iterable[Any]]


class Names:
    """A list of strings, as file names are; a sample is the length of one."""

    def __init__(self, samples: int) -> None:
        self._names = [f"train/{number:09}.jpg" for number in range(samples)]

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> int:
        return len(self._names[index])


def _number(row: dict[str, Any]) -> int:
    return int(row["number"])


def headrace(folder: Path, samples: int) -> Opened:
    return feed.DataLoader(feed.parquet(folder).map(_number), BATCH, feed.Window(1024, 64), seed=1, num_workers=WORKERS)


def headrace_list(folder: Path, samples: int) -> Opened:
    return feed.DataLoader(Names(samples), BATCH, True, seed=1, num_workers=WORKERS)


def torch_list(folder: Path, samples: int) -> Opened:
    loader: Iterable[Any] = torch.utils.data.DataLoader(Names(samples), BATCH, True, num_workers=WORKERS)
    return nullcontext(loader)


def datasets_stream(folder: Path, samples: int) -> Opened:
    """Hugging Face's streaming reader with a buffer of 1,000 rows."""
    import datasets

    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    return nullcontext(torch.utils.data.DataLoader(rows.shuffle(seed=1, buffer_size=1000), BATCH, num_workers=WORKERS))


CONTENDERS: dict[str, Callable[[Path, int], Opened]] = {
    each.__name__: each for each in (headrace, headrace_list, torch_list, datasets_stream)
}


def main() -> None:
    name, folder, samples = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    at, every = [], samples // BATCH // PLACES
    began, taken = time.perf_counter(), 0
    with CONTENDERS[name](folder, samples) as loader:
        for step, batch in enumerate(loader, 1):
            taken += len(batch["number"] if isinstance(batch, dict) else batch)
            if step % every == 0:
                at.append({"samples": taken, **held()._asdict()})
    assert taken == samples, f"{taken} samples, expected {samples}"
    print(json.dumps({"seconds": time.perf_counter() - began, "held": at}))


if __name__ == "__main__":
    main()
