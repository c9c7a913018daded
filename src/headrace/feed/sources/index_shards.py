"""Finds the index of a folder of shards, or makes it: only of shards that are new or changed, in several processes.

It is kept beside the shards (`.headrace-index`), or, where that cannot be written, and for objects of S3, in the
user's cache directory ($XDG_CACHE_HOME/headrace, by default ~/.cache/headrace). An index that others can have written
is not believed, and none is kept in a folder that they can write to. Of several processes of a host that
find none, one makes it and the others wait, as long as it goes on: the one that indexes touches the lock at every
shard. Where files cannot be locked, each makes it, and the last one's stays. Hosts that share the folder make it
together (`IndexParts`); others each make their own, or `headrace feed index` has made it before.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from headrace.child_python import module_command
from headrace.errors import ShardError
from headrace.feed.sources import shard_index
from headrace.feed.sources.byte_ranges import (
    Counted,
    Format,
    ShardPath,
    Stamp,
    attributes_of,
    pack,
    sample_of,
    stamp_of,
)
from headrace.feed.sources.shard_index import IndexedShard, ShardIndex
from headrace.feed.sources.shard_objects import ObjectFolder
from headrace.instance.files import INDEX_FOLDER
from headrace.private_folders import check_way, make_folders, only_ours

_ALONE_SECONDS = 0.5  # about what it costs to start helpers
_LOCK_SECONDS = 600.0  # without a sign of life of the one that holds it
_SHOWN = 5
_THREADS = 16
_HELPER_SECONDS = 2.0  # of one helper: about ten times what it costs to start
_ATTEMPTS = 3
_TICK = 20_000_000  # ns: file systems take the time from a clock that goes in steps of up to 10 ms
_SECONDS = 0.5  # between two looks at what others wrote, and between two parts
_END = ".part"

Job = tuple[str, str, list[str], str]
Outcome = IndexedShard | str  # what was found of a shard, or what is wrong with it
_OUTCOMES = msgspec.msgpack.Decoder(dict[str, Outcome])
_JOB = msgspec.msgpack.Decoder(Job)


def index_one(module: str, folder: Path | ObjectFolder, name: str, lock: Path) -> Outcome:
    """Indexes a shard.

    Args:
        module: of the shard's `Format`.
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
            rows, columns = importlib.import_module(module).index(path)
            sample, attributes = sample_of(path), attributes_of(path.stat()) if isinstance(path, Path) else 0
            after = stamp_of(path)
            if after == before:  # not so where to read it brings it back from a tape: its status changes
                break
    except ShardError as error:
        return error.message
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if not after.may_be(before):
        return f"{path} is being written"
    return IndexedShard(Counted(before, attributes, sample), rows, pack(columns))


def _settled(path: ShardPath) -> Stamp:
    """Returns the stamp of a shard once the clock of the file system has gone on: what changes it then is seen."""
    while True:
        stamp = stamp_of(path)
        wait = stamp.changed + _TICK - time.time_ns()
        if not 0 < wait <= _TICK:  # beyond: the clocks of two machines
            return stamp
        time.sleep(wait / 1e9)


class IndexParts:
    """The shards that are still to be counted, by this process and those of other hosts. Threads may share it.

    Every host counts the shards that are missing in an order of its own, writes what it has counted now and then as a
    part, a small index file beside the index, and takes what it finds in the parts of the others. Nobody waits for
    another one, and no shard belongs to anybody: a host that dies costs the shards that it was counting. Two hosts may
    count the same shard at the same time. A shard is taken from a part only if size and time of change are the same
    here, for an object its ETag (`ShardIndex.indexed`).

    Args:
        index: the file that the index will be.
        folder: of the shards.
        stamps: of all its shards, by name.
        indexed: those that are known already.

    Attributes:
        indexed: what is known, by name.
        problems: what is wrong with shards that this process has counted.
    """

    def __init__(
        self,
        index: Path,
        folder: Path | ObjectFolder,
        stamps: Mapping[str, Stamp],
        indexed: Mapping[str, IndexedShard],
    ) -> None:
        self._index, self._folder, self._stamps = index, folder, stamps
        self.indexed, self.problems = dict(indexed), list[str]()
        self._left = [name for name in stamps if name not in indexed]
        random.SystemRandom().shuffle(self._left)
        self._own, self._written = f"{index.name}.{secrets.token_hex(6)}", 0
        self._seen: set[tuple[str, int]] = {(index.name, _inode(index))}
        self._looked, self._put = -_SECONDS, time.monotonic()  # at first: one that died may have left parts
        self._unwritten: dict[str, IndexedShard] = {}
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._left)

    def take(self, most: int = 1) -> list[str]:
        """Returns names of shards to count next, fewer than `most` at the end."""
        with self._guard:
            if self._left and time.monotonic() > self._looked + _SECONDS:
                self._look()
                self._looked = time.monotonic()
            names, self._left = self._left[:most], self._left[most:]
            return names

    def put(self, outcomes: Mapping[str, Outcome]) -> None:
        """Takes what this process has counted; now and then it is written for the others."""
        with self._guard:
            for name, outcome in outcomes.items():
                if isinstance(outcome, str):
                    self.problems.append(outcome)
                else:
                    self.indexed[name] = self._unwritten[name] = outcome
            if self._unwritten and time.monotonic() > self._put + _SECONDS:
                with contextlib.suppress(OSError):  # the others count these shards themselves
                    part = self._index.with_name(f"{self._own}-{self._written}{_END}")
                    shard_index.write(part, self._unwritten)
                self._written += 1
                self._unwritten, self._put = {}, time.monotonic()

    def clear(self) -> None:
        """Removes all parts: the index has everything now."""
        for path in self._parts():
            with contextlib.suppress(OSError):  # another one has removed it
                path.unlink()

    def _parts(self) -> list[Path]:
        return [path for path in self._index.parent.glob(f"{self._index.name}.*{_END}") if path.is_file()]

    def _look(self) -> None:
        for path in (self._index, *self._parts()):
            file = (path.name, _inode(path))
            if file in self._seen or path.name.startswith(f"{self._own}-"):
                continue
            self._seen.add(file)
            self.indexed |= _same_shards(path, self._folder, self._stamps, self.indexed)
        self._left = [name for name in self._left if name not in self.indexed]


def _same_shards(
    path: Path, folder: Path | ObjectFolder, stamps: Mapping[str, Stamp], indexed_before: Collection[str]
) -> dict[str, IndexedShard]:
    """Returns what an index file, if there is one, has of shards that are the same now, and not known."""
    indexed: dict[str, IndexedShard] = {}
    index = ShardIndex.open(path)
    if index is None:
        return indexed
    for name in stamps.keys() - indexed_before:
        with contextlib.suppress(ShardError, OSError):  # damaged: it is counted again, which says what is wrong
            shard = index.indexed(name, folder / name, stamps[name])
            indexed |= {name: shard} if shard is not None else {}
    return indexed


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def find_index(form: Format, folder: Path | ObjectFolder, pattern: str, names: Sequence[str]) -> ShardIndex:
    """Returns an index that holds all shards as they are now.

    Args:
        form: of the shards.
        folder: where they lie.
        pattern: that their names match.
        names: below the folder.

    Raises:
        ShardError: a shard is broken (names file and offset), or the index can be kept nowhere.
    """
    stamps = {name: stamp_of(folder / name) for name in names}
    module = type(form).__module__
    file = f"{form.kind}-{hashlib.blake2b(pattern.encode(), digest_size=6).hexdigest()}.index"
    homes = [] if isinstance(folder, ObjectFolder) else [folder / INDEX_FOLDER]
    homes += _cache(folder)
    if (index := _fresh(homes, file, stamps)) is not None:
        return index
    refused: list[str] = []
    host = hashlib.blake2b(socket.gethostname().encode(), digest_size=6).hexdigest()
    for home in homes:
        try:
            check_way(home)
            if not home.parent.is_dir():
                make_folders(home.parent)
            home.mkdir(mode=0o755, exist_ok=True)
            if not only_ours(home.lstat()):
                raise PermissionError("other users can write to it, or have made it")
            lock = home / f"{file}.{host}.lock"
            with _locked(lock):
                return _fresh([home], file, stamps) or _make(module, folder, homes, home / file, stamps, lock)
        except OSError as error:
            refused.append(f"{home}: {error.strerror or error}")
    raise ShardError(
        f"the index of {folder} can be kept nowhere: {'; '.join(refused) or 'this user has no home folder'}",
        hint="let XDG_CACHE_HOME name a folder that this process may write",
    )


def _cache(folder: Path | ObjectFolder) -> list[Path]:
    """Where an index is kept away from its shards: one folder; none for a user without a home."""
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(home) if home else Path.home() / ".cache"
    except RuntimeError:
        return []
    place = str(folder) if isinstance(folder, ObjectFolder) else os.path.realpath(folder)
    return [base / "headrace" / "index" / hashlib.blake2b(os.fsencode(place), digest_size=12).hexdigest()]


def _fresh(homes: Sequence[Path], file: str, stamps: dict[str, Stamp]) -> ShardIndex | None:
    indexes = (ShardIndex.open(home / file) for home in homes)
    return next((index for index in indexes if index is not None and index.stamps == stamps), None)


def _make(
    module: str, folder: Path | ObjectFolder, homes: Sequence[Path], path: Path, stamps: dict[str, Stamp], lock: Path
) -> ShardIndex:
    indexed: dict[str, IndexedShard] = {}
    for home in homes:
        indexed |= _same_shards(home / path.name, folder, stamps, indexed)
    parts = IndexParts(path, folder, stamps, indexed)
    _index_all(module, folder, parts, lock)
    shard_index.write(path, parts.indexed)  # also when some are broken: the others need not be read again
    parts.clear()
    problems = sorted(parts.problems)
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ShardError(
            f"{len(problems)} of {len(stamps)} shards cannot be used: {'; '.join(problems[:_SHOWN])}{more}",
            hint="pack these shards again, or take them away; what they hold is never skipped silently",
        )
    index = ShardIndex.open(path)
    now = index.stamps if index is not None else {}
    if index is None or now.keys() != stamps.keys() or not all(now[name].may_be(stamps[name]) for name in now):
        raise ShardError(f"the shards in {folder} change while their rows are counted", "wait until they are written")
    return index


def _index_all(module: str, folder: Path | ObjectFolder, parts: IndexParts, lock: Path) -> None:
    """Indexes shards, alone at first, and with helpers if there is more to do than starting them costs.

    Objects are indexed by threads, because that is waiting for the network.
    """

    def count(most: int) -> None:
        while names := parts.take(most):
            if isinstance(folder, ObjectFolder):
                parts.put({name: index_one(module, folder, name, lock) for name in names})
            else:
                parts.put(_helped(module, folder, names, lock))

    helpers, share = _THREADS, 1
    if not isinstance(folder, ObjectFolder):
        cores = len(os.sched_getaffinity(0))
        end, done = time.monotonic() + _ALONE_SECONDS, 0
        while cores < 2 or len(parts) < 2 or time.monotonic() < end:
            names = parts.take()
            if not names:
                return
            parts.put({names[0]: index_one(module, folder, names[0], lock)})
            done += 1
        helpers = min(cores, len(parts))
        if not helpers:
            return
        share = -(-len(parts) // helpers)
        if done:  # short enough for others to learn of it soon
            share = max(1, min(share, round(done * _HELPER_SECONDS / _ALONE_SECONDS)))
    with ThreadPoolExecutor(helpers) as pool:
        list(pool.map(count, [share] * helpers))


def _helped(module: str, folder: Path, names: list[str], lock: Path) -> dict[str, Outcome]:
    source = str(Path(__file__).parents[3])
    paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    job: Job = (module, str(folder), names, str(lock))
    done = subprocess.run(
        module_command("headrace.feed.sources.index_shards"),
        input=msgspec.msgpack.encode(job), capture_output=True, check=False, env=os.environ | {"PYTHONPATH": paths},
    )  # fmt: skip
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()[-400:]
        raise ShardError(f"a process that counted rows in {folder} ended with {done.returncode}: {text}")
    return _OUTCOMES.decode(done.stdout)


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


def main() -> None:
    """The helper: reads a job from its input, [module, folder, [names], lock], writes the outcomes to its output."""
    module, folder, names, lock = _JOB.decode(sys.stdin.buffer.read())
    outcomes = {name: index_one(module, Path(folder), name, Path(lock)) for name in names}
    sys.stdout.buffer.write(msgspec.msgpack.encode(outcomes))


if __name__ == "__main__":
    main()
