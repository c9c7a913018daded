"""What `feed.hf` gives and refuses. A program of its own: the library leaves a thread and a semaphore behind.

python hugging_face_rows.py FOLDER
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets.distributed import split_dataset_by_node

from headrace import feed
from headrace.errors import PipelineError, ShardError


def main(folder: Path) -> None:
    made = datasets.Dataset.from_dict({"text": [f"w{row}" for row in range(20)], "label": list(range(20))})
    made.save_to_disk(folder / "set", num_shards=2)
    source = feed.hf(folder / "set").map(lambda row: row["label"])
    assert list(source) == list(range(20))
    assert getattr(source, "__shards__", None) is None  # every host has all of it
    assert feed.hf(made)[3] == {"text": "w3", "label": 3}
    loader = feed.DataLoader(feed.hf(folder / "set"), 5, feed.Window(2, 2), seed=1, num_workers=2)
    with loader:
        assert sorted(label for batch in loader for label in batch["label"].tolist()) == list(range(20))
    with pytest.raises(PipelineError, match="got one of type IterableDataset: a plan needs the number of rows"):
        feed.hf(made.to_iterable_dataset())
    lanes(made.to_iterable_dataset(num_shards=4), stateful=True)
    lanes(made.to_iterable_dataset(num_shards=4).shuffle(seed=1, buffer_size=7), stateful=False)
    split = split_dataset_by_node(made.to_iterable_dataset(num_shards=4), rank=0, world_size=2)
    with pytest.raises(PipelineError, match=r"divided with split_dataset_by_node(.|\n)*leave that out"):
        next(iter(feed.DataLoader(split, num_shards=2, rank=0, world_size=2, uneven=True)))
    with pytest.raises(PipelineError, match="dict of the splits train"):
        feed.hf(datasets.DatasetDict({"train": made}))
    with pytest.raises(ShardError, match="holds no dataset"):
        feed.hf(folder)


def lanes(dataset: datasets.IterableDataset, *, stateful: bool) -> None:
    """Streams of the library come once, and go on exactly: by their state, or, with a buffer, by a replay."""
    options: dict[str, Any] = {"batch_size": 2, "num_shards": 4, "seed": 1}
    whole = [batch["label"].tolist() for batch in feed.DataLoader(dataset, **options)]
    assert sorted(itertools.chain(*whole)) == list(range(20))
    loader = feed.DataLoader(dataset, **options)
    batches = iter(loader)
    for step in range(1, len(whole)):
        next(batches)
        assert bool(loader.state_dict()["lanes"].get("tokens")) is stateful
        resumed = feed.DataLoader(dataset, **options)
        resumed.load_state_dict(loader.state_dict())
        assert [batch["label"].tolist() for batch in resumed] == whole[step:]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
