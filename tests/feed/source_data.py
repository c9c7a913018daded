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


def write_shard(kind: str, path: Path, change: str = "") -> Path:
    """Writes a shard of 1,500 rows; with a change, another one of the same size: in a row, or in its layout."""
    import pyarrow
    from pyarrow import parquet

    texts = [f"{number:04d}" * 100 for number in range(1_500)]
    if change == "row":
        texts[400] = "7777" * 100
    if change == "layout":
        texts[400], texts[401] = texts[400][:-5], texts[401] + texts[400][-5:]
    if kind == "tar":
        return write_tar(path, [{"__key__": f"{row:04d}", "txt": text.encode()} for row, text in enumerate(texts)])
    if kind == "jsonl":
        path.write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
        return path
    table = pyarrow.table({"text": texts})
    if kind == "parquet":
        parquet.write_table(
            table, path, row_group_size=100, compression="none", use_dictionary=False, write_statistics=False
        )
        return path
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    return path


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
