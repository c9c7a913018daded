"""Memory of a loop that keeps a part of every batch: 1 worker, 300 batches of 100 images in a list, 8 MB, and labels.

`python -m bench.held.kept NAME FOLDER CASE` prints one JSON object: what was held behind 20, 100 and 300 batches.
CASE is what the loop keeps: nothing; the labels; predictions, which it computes from the images; one image of the list.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from bench.held.footprint import held

from headrace import feed

ROWS, BATCHES, PLACES = 100, 300, (20, 100, 300)
IMAGE = (3, 80, 80)  # float32: 77 KB
Batch = tuple[list[torch.Tensor], torch.Tensor]


class Images(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Images of one number each, and their labels."""

    def __len__(self) -> int:
        return ROWS * BATCHES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full(IMAGE, float(index)), index


def in_a_list(samples: list[tuple[torch.Tensor, int]]) -> Batch:
    """A collate function, as that of detection: images of any size."""
    return [image for image, _ in samples], torch.tensor([label for _, label in samples])


CONTENDERS = {"headrace": feed.DataLoader, "torch": torch.utils.data.DataLoader}
CASES: dict[str, Callable[[Batch], Any]] = {
    "nothing": lambda batch: None,
    "labels": lambda batch: batch[1],
    "predictions": lambda batch: torch.stack([image.mean() for image in batch[0]]),
    "image": lambda batch: batch[0][7],
}


def main() -> None:
    name, case = sys.argv[1], sys.argv[3]
    torch.set_num_threads(1)
    kept, at = [], {}
    began = time.perf_counter()
    loader: Any = CONTENDERS[name](Images(), ROWS, num_workers=1, collate_fn=in_a_list)
    for step, batch in enumerate(loader, 1):
        kept.append(CASES[case](batch))
        del batch
        if step in PLACES:
            at[step] = held()._asdict()
    print(json.dumps({"seconds": time.perf_counter() - began, "held": at}))


if __name__ == "__main__":
    main()
