"""A helper that indexes shards for another process: a job on its input, the result on its output, both MessagePack.

python -m headrace.feed.sources.index_program       job: [kind, folder, [names], lock]
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import msgspec

from headrace.errors import ShardError
from headrace.feed.sources import arrow_shards, json_lines, parquet_shards, tar_shards
from headrace.feed.sources.byte_ranges import (
    Counted,
    ShardPath,
    Stamp,
    attributes_of,
    pack,
    sample_of,
    stamp_of,
)
from headrace.feed.sources.shard_index import IndexedShard
from headrace.feed.sources.shard_objects import ObjectFolder

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


_ATTEMPTS = 3
_TICK = 20_000_000  # ns: file systems take the time from a clock that goes in steps of up to 10 ms
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
        for _ in range(_ATTEMPTS):
            before = _settled(path)
            rows, columns = KINDS[kind](path)
            sample, attributes = sample_of(path), attributes_of(path.stat()) if isinstance(path, Path) else 0
            after = stamp_of(path)
            if after == before:  # not so where to read it brings it back from a tape: its status changes
                break
        if not after.may_be(before):
            return Outcome(name, None, f"{path} is being written")
    except ShardError as error:
        return Outcome(name, None, error.message)
    except OSError as error:
        return Outcome(name, None, f"{path} cannot be read: {error.strerror}")
    return Outcome(name, IndexedShard(Counted(before, attributes, sample), rows, pack(columns)))


def _settled(path: ShardPath) -> Stamp:
    """Returns the stamp of a shard once the clock of the file system has gone on: what changes it then is seen."""
    while True:
        stamp = stamp_of(path)
        wait = stamp.changed + _TICK - time.time_ns()
        if not 0 < wait <= _TICK:  # beyond: the clocks of two machines
            return stamp
        time.sleep(wait / 1e9)


def main() -> None:
    """Reads a job, writes its outcomes."""
    kind, folder, names, lock = _JOB.decode(sys.stdin.buffer.read())
    outcomes = [index_one(kind, Path(folder), name, Path(lock)) for name in names]
    sys.stdout.buffer.write(msgspec.msgpack.encode(outcomes))


if __name__ == "__main__":
    main()
