"""The datasets of the proof. No headrace here: the plain loop imports this module too."""

from __future__ import annotations

import errno
import io
import random
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


class Samples:
    """Samples that depend on the index and on all three random generators.

    Args:
        n: how many.
        floats: length of the large tensor.
        delay: seconds that a sample takes.
        words: whether a sample holds strings too, so that batches do not stack row by row.
    """

    def __init__(self, n: int = 240, floats: int = 64, delay: float = 0.001, words: bool = False) -> None:
        self.n, self.floats, self.delay, self.words = n, floats, delay, words

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.delay)
        sample: dict[str, Any] = {
            "image": torch.randint(0, 256, (5, 7), dtype=torch.uint8),
            "large": torch.randn(self.floats),
            "pair": (np.random.rand(3), random.random()),
            "index": index,
        }
        if self.words:
            sample["word"] = f"{index}-{random.randrange(10**9)}"
        return sample


MIXTURE = {"a": (150, 0.5), "b": (17, 0.2), "c": (60, 0.3)}  # rows and weight of each source


class OneSource(Samples):
    """Samples that name the source of a mixture that they come from."""

    def __init__(self, source: str, delay: float) -> None:
        super().__init__(MIXTURE[source][0], 16, delay)
        self.source = ord(source)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) | {"source": self.source}


class FullDisk(Samples):
    """A dataset whose own cache is on a full disk."""

    def __getitem__(self, index: int) -> Any:
        if index == self.n // 2:
            raise OSError(errno.ENOSPC, "No space left on device", f"/cache/{index}")
        return super().__getitem__(index)


def lane_rows(n: int, lane: int, lanes: int, delay: float = 0.0, made: int = 0) -> Iterator[Any]:
    """Yields the rows of one lane: those left of its part of n, so that lanes have different lengths."""
    own = [row for row in range(lane, n, lanes) if row * 7919 % 5 < 2 + lane % 3]
    for row in own[made:]:
        time.sleep(delay)
        yield {"row": row, "drawn": torch.randn(5), "pair": (np.random.rand(3), random.random())}


class LaneRows(IterableDataset[Any]):
    """A dataset without a count. `state_dict` says how many of its lane's rows were made."""

    def __init__(self, n: int, delay: float = 0.0) -> None:
        self.n, self.delay, self.made = n, delay, 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        for row in lane_rows(self.n, info.id, info.num_workers, self.delay, self.made):
            self.made += 1
            yield row

    def state_dict(self) -> dict[str, int]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.made = state["made"]


def lane_samples(source: str, n: int, lane: int, lanes: int, delay: float = 0.0, made: int = 0) -> Iterator[Any]:
    """Yields the samples of one lane of a source of a mixture."""
    samples = OneSource(source, delay)
    for row in range(lane + made * lanes, n, lanes):
        yield samples[row]


class LaneSamples(LaneRows):
    """A source of a mixture without a count."""

    def __init__(self, source: str, n: int, delay: float = 0.0) -> None:
        super().__init__(n, delay)
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        for sample in lane_samples(self.source, self.n, info.id, info.num_workers, self.delay, self.made):
            self.made += 1
            yield sample


def kept(sample: Mapping[str, Any]) -> bool:
    """A filter that draws."""
    return bool(sample["index"] % 3) and random.random() < 0.9


def lane_documents(n: int, lane: int, lanes: int, delay: float = 0.0, made: int = 0) -> Iterator[list[int]]:
    """Yields the documents of one lane: tokens that follow from its number, some of them drawn."""
    for number in range(lane + made * lanes, n, lanes):
        time.sleep(delay)
        length = number * 7919 % 23 if number % 11 else 60
        yield [number, *(random.randrange(1 << 20) + int(np.random.rand() * 9) for _ in range(length))]


class LaneDocuments(LaneRows):
    """Documents without a count."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        for document in lane_documents(self.n, info.id, info.num_workers, self.delay, self.made):
            self.made += 1
            yield document


def write_tars(folder: Path, n: int, shards: int = 5) -> Path:
    """Writes n rows into shards of unequal size: some bytes, and the row's number."""
    folder.mkdir()
    chance = random.Random(n)
    edges = [0, *sorted(chance.sample(range(1, n), shards - 1)), n]
    for shard in range(shards):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for row in range(edges[shard], edges[shard + 1]):
                for field, content in (("bin", chance.randbytes(chance.randrange(16, 2000))), ("cls", b"%d" % row)):
                    member = tarfile.TarInfo(f"{row:06}.{field}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return folder


def decode(row: Mapping[str, Any], delay: float) -> Any:
    """Makes a sample of a row of a tar file."""
    time.sleep(delay)
    return {
        "bytes": torch.tensor(list(row["bin"][:16]), dtype=torch.uint8),
        "sum": sum(row["bin"]),
        "row": int(row["cls"]),
        "drawn": torch.rand(5),
    }


class TarRows:
    """The rows of `write_tars`, as the standard library reads them.

    Args:
        folder: of the shards.
        delay: seconds that a sample takes.
    """

    def __init__(self, n: int, folder: str, delay: float = 0.0) -> None:
        self.rows: list[dict[str, bytes]] = []
        for path in sorted(Path(folder).glob("*.tar")):
            with tarfile.open(path) as tar:
                for member in tar:
                    name, _, field = member.name.partition(".")
                    if not self.rows or self.rows[-1]["name"] != name.encode():
                        self.rows.append({"name": name.encode()})
                    content = tar.extractfile(member)
                    assert content is not None
                    self.rows[-1][field] = content.read()
        assert len(self.rows) == n
        self.delay = delay

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return decode(self.rows[index], self.delay)
