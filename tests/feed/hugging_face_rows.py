"""What `feed.hf` gives and refuses. A program of its own: the library leaves a thread and a semaphore behind.

python hugging_face_rows.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import datasets
import pytest

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
    with pytest.raises(PipelineError, match="got a IterableDataset: a plan needs the number of rows"):
        feed.hf(made.to_iterable_dataset())
    with pytest.raises(PipelineError, match="dict of the splits train"):
        feed.hf(datasets.DatasetDict({"train": made}))
    with pytest.raises(ShardError, match="holds no dataset"):
        feed.hf(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
