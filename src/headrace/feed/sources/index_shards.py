"""Finds the index of a folder of shards, or makes it: only of shards that are new or changed, in several processes.

It is kept beside the shards (`.headrace-index`), or, where that cannot be written, and for objects of S3, in the
user's cache directory ($XDG_CACHE_HOME/headrace, by default ~/.cache/headrace). An index that others can have written
is not believed, and none is kept in a folder that they can write to. Of several processes of a host that
find none, one makes it and the others wait, as long as it goes on: the one that indexes touches the lock at every
shard. Where files cannot be locked, each makes it, and the last one's stays. Hosts that share the folder make it
together (`index_parts`); others each make their own, or `headrace feed index` has made it before.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from headrace.child_python import module_command
from headrace.errors import ShardError
from headrace.feed.sources import index_program, shard_index
from headrace.feed.sources.byte_ranges import Stamp, stamp_of
from headrace.feed.sources.index_parts import IndexParts
from headrace.feed.sources.index_program import Outcome, index_one
from headrace.feed.sources.shard_index import IndexedShard, ShardIndex
from headrace.feed.sources.shard_objects import ObjectFolder
from headrace.private_folders import check_way, make_folders, only_ours

FOLDER = ".headrace-index"
_ALONE_SECONDS = 0.5  # about what it costs to start helpers
_LOCK_SECONDS = 600.0  # without a sign of life of the one that holds it
_SHOWN = 5
_THREADS = 16
_HELPER_SECONDS = 2.0  # of one helper: about ten times what it costs to start


def find_index(kind: str, folder: Path | ObjectFolder, pattern: str, names: Sequence[str]) -> ShardIndex:
    """Returns an index that holds all shards as they are now.

    Args:
        kind: of the shards, one of `index_program.KINDS`.
        folder: where they lie.
        pattern: that their names match.
        names: below the folder.

    Raises:
        ShardError: a shard is broken (names file and offset), or the index can be kept nowhere.
    """
    stamps = {name: stamp_of(folder / name) for name in names}
    file = f"{kind}-{hashlib.blake2b(pattern.encode(), digest_size=6).hexdigest()}.index"
    homes = [] if isinstance(folder, ObjectFolder) else [folder / FOLDER]
    homes += _cache(folder)
    found = _fresh(homes, file, stamps)
    if found is not None:
        return found
    refused: list[str] = []
    for home in homes:
        try:
            check_way(home)
            if not home.parent.is_dir():
                make_folders(home.parent)
            home.mkdir(mode=0o755, exist_ok=True)
            if not only_ours(home.lstat()):
                raise PermissionError("other users can write to it, or have made it")
            lock = home / f"{file}.{_host()}.lock"
            with _locked(lock):
                return _fresh([home], file, stamps) or _make(kind, folder, homes, home / file, stamps, lock)
        except OSError as error:
            refused.append(f"{home}: {error.strerror or error}")
    raise ShardError(
        f"the index of {folder} can be kept nowhere: {'; '.join(refused) or 'this user has no home folder'}",
        hint="let XDG_CACHE_HOME name a folder that this process may write",
    )


def _host() -> str:
    return hashlib.blake2b(socket.gethostname().encode(), digest_size=6).hexdigest()


def _cache(folder: Path | ObjectFolder) -> list[Path]:
    """Where an index is kept away from its shards: one folder; none for a user without a home."""
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(home) if home else Path.home() / ".cache"
    except RuntimeError:
        return []
    return [base / "headrace" / "index" / _digest(folder)]


def _digest(folder: Path | ObjectFolder) -> str:
    place = str(folder) if isinstance(folder, ObjectFolder) else os.path.realpath(folder)
    return hashlib.blake2b(os.fsencode(place), digest_size=12).hexdigest()


def _fresh(homes: Sequence[Path], file: str, stamps: dict[str, Stamp]) -> ShardIndex | None:
    for home in homes:
        found = ShardIndex.open(home / file)
        if found is not None and _stamps(found) == stamps:
            return found
    return None


def _stamps(found: ShardIndex) -> dict[str, Stamp]:
    return {name: entry.counted.stamp for name, entry in found.entries.items()}


def _make(
    kind: str, folder: Path | ObjectFolder, homes: Sequence[Path], path: Path, stamps: dict[str, Stamp], lock: Path
) -> ShardIndex:
    indexed: dict[str, IndexedShard] = {}
    for old in filter(None, (ShardIndex.open(home / path.name) for home in homes)):
        for name, stamp in stamps.items():
            if name not in indexed:
                with contextlib.suppress(ShardError, OSError):  # damaged: it is counted again
                    shard = old.indexed(name, folder / name, stamp)
                    indexed |= {name: shard} if shard is not None else {}
    parts = IndexParts(path, folder, stamps, sorted(stamps.keys() - indexed.keys()))
    problems: list[str] = []
    for outcome in _index_all(kind, folder, parts, lock):
        if outcome.indexed is not None:
            indexed[outcome.name] = outcome.indexed
        else:
            problems.append(outcome.problem)
    problems.sort()
    shard_index.write(path, indexed | parts.taken)  # also when some are broken: the others need not be read again
    parts.clear()
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ShardError(
            f"{len(problems)} of {len(stamps)} shards cannot be used: {'; '.join(problems[:_SHOWN])}{more}",
            hint="pack these shards again, or take them away; what they hold is never skipped silently",
        )
    made = ShardIndex.open(path)
    if made is None or not _may_be(_stamps(made), stamps):
        raise ShardError(f"the shards in {folder} change while their rows are counted", "wait until they are written")
    return made


def _may_be(one: dict[str, Stamp], other: dict[str, Stamp]) -> bool:
    return one.keys() == other.keys() and all(one[name].may_be(other[name]) for name in one)


def _index_all(kind: str, folder: Path | ObjectFolder, parts: IndexParts, lock: Path) -> Iterator[Outcome]:
    """Indexes shards, alone at first, and with helpers if there is more to do than starting them costs.

    Objects are indexed by threads, because that is waiting for the network.
    """

    def counted(most: int) -> list[Outcome]:
        found: list[Outcome] = []
        while names := parts.take(most):
            if isinstance(folder, ObjectFolder):
                outcomes = [index_one(kind, folder, name, lock) for name in names]
            else:
                outcomes = _helped(kind, folder, names, lock)
            parts.put(outcomes)
            found += outcomes
        return found

    helpers, share = _THREADS, 1
    if not isinstance(folder, ObjectFolder):
        cores = len(os.sched_getaffinity(0))
        end, done = time.monotonic() + _ALONE_SECONDS, 0
        while cores < 2 or len(parts) < 2 or time.monotonic() < end:
            names = parts.take()
            if not names:
                return
            outcome = index_one(kind, folder, names[0], lock)
            parts.put([outcome])
            yield outcome
            done += 1
        helpers = min(cores, len(parts))
        if not helpers:
            return
        share = -(-len(parts) // helpers)
        if done:  # short enough for others to learn of it soon
            share = max(1, min(share, round(done * _HELPER_SECONDS / _ALONE_SECONDS)))
    with ThreadPoolExecutor(helpers) as pool:
        for outcomes in pool.map(counted, [share] * helpers):
            yield from outcomes


def _helped(kind: str, folder: Path, names: list[str], lock: Path) -> list[Outcome]:
    source = str(Path(__file__).parents[3])
    paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    job: index_program.Job = (kind, str(folder), names, str(lock))
    done = subprocess.run(
        module_command("headrace.feed.sources.index_program"),
        input=msgspec.msgpack.encode(job), capture_output=True, check=False, env=os.environ | {"PYTHONPATH": paths},
    )  # fmt: skip
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip()[-400:]
        raise ShardError(f"a process that counted rows in {folder} ended with {done.returncode}: {told}")
    return index_program.OUTCOMES.decode(done.stdout)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock among the processes of this host, a file that is there meanwhile; none where there are no locks."""
    end, touched = time.monotonic() + _LOCK_SECONDS, 0
    while True:
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sign = os.fstat(file.fileno()).st_mtime_ns
                if sign != touched:
                    end, touched = time.monotonic() + _LOCK_SECONDS, sign
                if time.monotonic() > end:
                    raise ShardError(
                        f"another process holds {path}, and has counted no shard for {_LOCK_SECONDS:.0f} s",
                        hint="see what it does; if it was stopped, end it, and start again",
                    ) from None
                time.sleep(0.02)
                continue
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                    raise
            if not _is(path, file.fileno()):
                continue  # the one that held it has removed it
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
