"""Shards for the tests, and pipelines over them. Feed servers without torch import this module."""

from __future__ import annotations

import io
import os
import random
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace import feed

if TYPE_CHECKING:
    import pytest


def write_tar(path: Path, rows: Sequence[Mapping[str, bytes]], form: int = tarfile.PAX_FORMAT) -> Path:
    """Writes rows in WebDataset's naming: `__key__`, and bytes by field."""
    with tarfile.open(path, "w", format=form) as tar:
        for row in rows:
            for field, content in row.items():
                if field != "__key__":
                    member = tarfile.TarInfo(f"{row['__key__']}.{field}")  # type: ignore[str-bytes-safe]
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return path


def tar_rows(shard: str, count: int) -> list[dict[str, Any]]:
    chance = random.Random(shard)
    return [
        {"__key__": f"{shard}/{row:05}", "bin": chance.randbytes(chance.randrange(1, 3000)), "cls": b"%d" % row}
        for row in range(count)
    ]


def fill_tars(folder: Path, counts: Mapping[str, int]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for shard, count in counts.items():
        write_tar(folder / f"{shard}.tar", tar_rows(shard, count))
    return folder


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which every `pread` of a tar in this process adds its size. The index beside it does not."""
    reads: list[int] = []
    pread = os.pread

    def read(descriptor: int, size: int, at: int) -> bytes:
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".tar":
            reads.append(size)
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", read)
    return reads


def decode(row: dict[str, Any]) -> dict[str, Any]:
    """What a row holds, and a random number: 16 bytes of the contents, so that rows stack."""
    content = row["bin"]
    return {
        "head": np.array([*content[:8].ljust(8, b"-"), *content[-8:].rjust(8, b"-")], np.uint8),
        "sum": sum(content),
        "row": int(row["cls"]),
        "drawn": np.random.rand(3),
    }


@feed.pipeline
def tars(channel: str = "training") -> feed.Source:
    return feed.tar(feed.channel(channel), "*.tar").map(decode)


@feed.pipeline
def objects(uri: str) -> feed.Source:
    return feed.tar(uri, "*.tar").map(decode)


@feed.pipeline
def noted(folder: str, notes: str, megabytes: int = 0) -> feed.Source:
    """Notes that it was called; its rows hold memory."""
    with Path(notes).open("a") as file:
        file.write("called\n")
    ballast = bytes(range(256)) * (megabytes << 12)
    return feed.tar(folder).map(lambda row: {"key": row["__key__"], "held": len(ballast)})
