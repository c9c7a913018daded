"""Shards in the formats of those peers that read their own only, made once; what that takes is kept beside the figures.

python -m bench.shards.conversion NAME ROW FOLDER     prints one JSON object: seconds, CPU seconds, bytes
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from bench.shards.clock import now
from bench.shards.work import TEXTS

from headrace import feed


def samples(row: str, folder: Path) -> Any:
    """Returns the samples of a row, a sequence of dicts of bytes or text."""
    return feed.parquet(folder) if row in TEXTS else feed.tar(folder)


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    """Returns a sample without what names it."""
    return {name: value for name, value in sample.items() if name != "__key__"}


def array_record(row: str, folder: Path, into: Path) -> None:
    """For Grain: records that are read by number, each a sample as msgpack."""
    from array_record.python import array_record_module

    source = samples(row, folder)
    writer = array_record_module.ArrayRecordWriter(str(into / "all.array_record"), "group_size:1")
    for number in range(len(source)):
        writer.write(msgspec.msgpack.encode(plain(source[number])))
    writer.close()


def _numbered(number: int, source: Any) -> dict[str, Any]:
    return plain(source[number])


def chunks(row: str, folder: Path, into: Path) -> None:
    """For LitData: its chunks of 64 MB."""
    import litdata

    source = samples(row, folder)
    litdata.optimize(
        functools.partial(_numbered, source=source), list(range(len(source))), str(into), chunk_bytes="64MB",
        num_workers=2, verbose=False,
    )  # fmt: skip


def mosaic(row: str, folder: Path, into: Path) -> None:
    """For Mosaic Streaming: MDS files."""
    from streaming import MDSWriter

    source = samples(row, folder)
    kinds = {"text": "str", "cls": "bytes", "bin": "bytes", "jpg": "bytes"}
    columns = {name: kinds[name] for name in plain(source[0])}
    with MDSWriter(out=str(into), columns=columns) as writer:
        for number in range(len(source)):
            writer.write(plain(source[number]))


def energon(row: str, folder: Path, into: Path) -> None:
    """For Energon: the same tar files, and the index that its own command makes."""
    for path in folder.glob("*.tar"):
        shutil.copyfile(path, into / path.name)
    command = [sys.executable, "-c", "from megatron.energon.cli.main import main; main()", "prepare", str(into)]
    options = [
        "--non-interactive",
        "--split-parts",
        "train:.*",
        "--sample-type",
        "CrudeWebdataset",
        "--num-workers",
        "2",
    ]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)


FORMS: dict[str, Callable[[str, Path, Path], None]] = {
    each.__name__: each for each in (array_record, chunks, mosaic, energon)
}


def converted(form: str, row: str, folder: Path) -> Path:
    """Returns where the shards of a row lie in a peer's form."""
    return folder.parent / f"{row}.{form}"


def _sizes(folder: Path) -> Iterator[int]:
    for where, _, names in os.walk(folder):
        yield from ((Path(where) / name).stat().st_size for name in names)


def main() -> None:
    form, row, given = sys.argv[1:]
    folder = Path(given)
    there = converted(form, row, folder)
    began = now()
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        FORMS[form](row, folder, made)
        made.rename(there)
    ended = now()
    taken = {"seconds": ended.seconds - began.seconds, "cpu": ended.cpu - began.cpu}
    print(json.dumps(taken | {"bytes": sum(_sizes(there))}))


if __name__ == "__main__":
    main()
