"""What `feed.hf` reads of S3. A program of its own: the library leaves a thread and a semaphore behind.

python hugging_face_objects_program.py FOLDER URI
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import boto3
import datasets
import pytest

from headrace import feed
from headrace.errors import ShardError


def plain(row: Any) -> Any:
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()}


def main(folder: Path, uri: str) -> None:
    features = datasets.Features({
        "text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"]),
        "tokens": datasets.Sequence(datasets.Value("int32")),
    })  # fmt: skip
    rows = [{"text": f"t{row}", "label": row % 2, "tokens": list(range(row % 6))} for row in range(90)]
    dataset = datasets.Dataset.from_list(rows, features=features).select(range(5, 90))
    for kind, saved in {"plain": dataset, "arrays": dataset.with_format("numpy", columns=["tokens", "label"])}.items():
        saved.save_to_disk(folder / kind, num_shards=3)
        for path in (folder / kind).iterdir():
            put(f"{uri}/{kind}/{path.name}", path.read_bytes())
        here, there = feed.hf(folder / kind), feed.hf(f"{uri}/{kind}")
        assert len(there) == 85
        assert there.shard_digests == here.shard_digests, "a run goes on on copies"
        assert list(map(plain, there)) == list(map(plain, here))
        assert [[type(value) for value in row.values()] for row in there] == [
            [type(value) for value in row.values()] for row in here
        ]
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 1, "collate_fn": list}
    with feed.DataLoader(there.map(plain), **options, num_workers=2) as served:
        assert list(served) == list(feed.DataLoader(here.map(plain), **options))
    put(f"{uri}/both/dataset_dict.json", b'{"splits": ["train", "test"]}')
    with pytest.raises(ShardError, match=r"a dict of the splits train, test(.|\n)*both/train"):
        feed.hf(f"{uri}/both")
    with pytest.raises(ShardError, match=r"no dataset of save_to_disk: there is no state\.json"):
        feed.hf(f"{uri}/none")


def put(uri: str, content: bytes) -> None:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
