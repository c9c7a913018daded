"""A helper that indexes shards for another process: a job on its input, the result on its output, both MessagePack.

python -m headrace.feed.sources.index_program       job: [kind, folder, [names], lock]
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import msgspec

from headrace.errors import ShardError
from headrace.feed.sources import arrow_shards, json_lines, parquet_shards, tar_shards
from headrace.feed.sources.s3_objects import ObjectFolder
from headrace.feed.sources.shard_format import pack, sample_of, stamp_of
from headrace.feed.sources.shard_index import IndexedShard

KINDS = {
    "tar": tar_shards.index,
    "jsonl": json_lines.index,
    "parquet": parquet_shards.index,
    "arrow": arrow_shards.index,
}
"""How the rows of each kind of shard are counted."""


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of one shard: what was found, or what is wrong with it."""

    name: str
    indexed: IndexedShard | None
    problem: str = ""


Job = tuple[str, str, list[str], str]
OUTCOMES = msgspec.msgpack.Decoder(list[Outcome])
_JOB = msgspec.msgpack.Decoder(Job)


def index_one(kind: str, folder: Path | ObjectFolder, name: str, lock: Path) -> Outcome:
    """Indexes a shard.

    Args:
        kind: of the shard.
        folder, name: where it lies.
        lock: file whose time of change is set, so that those who wait for the index see that it goes on.

    Raises:
        PipelineError: a library that the kind needs is missing.
    """
    path = folder / name
    with contextlib.suppress(OSError):  # then they wait their time
        os.utime(lock)
    try:
        before = stamp_of(path)
        rows, columns = KINDS[kind](path)
        sample = sample_of(path)
        if stamp_of(path) != before:
            return Outcome(name, None, f"{path} is being written")
    except ShardError as error:
        return Outcome(name, None, error.message)
    except OSError as error:
        return Outcome(name, None, f"{path} cannot be read: {error.strerror}")
    return Outcome(name, IndexedShard(before.size, before.modified, rows, pack(columns), sample))


def main() -> None:
    """Reads a job, writes its outcomes."""
    kind, folder, names, lock = _JOB.decode(sys.stdin.buffer.read())
    outcomes = [index_one(kind, Path(folder), name, Path(lock)) for name in names]
    sys.stdout.buffer.write(msgspec.msgpack.encode(outcomes))


if __name__ == "__main__":
    main()
