"""Keeps checkpoints and intermediate output safe while a job runs.

It is started as `python -m headrace.hosting.helpers.sync RUN_DIR`.

New and changed files of /opt/ml/checkpoints and /opt/ml/output/intermediate of every host go to their places (see
`artefacts`) within about a second of their last write; nothing is ever removed there. It reports on standard
output when it has begun. SIGTERM asks for a last look, after which it ends.

A place that cannot be written is tried again as long as the job runs, with a warning on standard error. If the last
look cannot be stored either it ends with 1 and ``error: ...`` as the last line of standard error, else with 0.

A file is copied when no process has it open for writing (the kernel is asked for a read lease, which is given back at
once) and it has not changed between two looks. It is copied or uploaded under a check that it has not changed
meanwhile, so that a place never has half a file. Where the kernel gives no leases (another user's file, a network file
system), it must not have changed for `QUIET_SECONDS`.

Several folders may have the same place, as all hosts of a job have one for checkpoints. The last writer of a name wins,
as on the service; a name with more than one content is counted as a clash. Folders of other machines are not seen here:
of what was brought there the digests are told (`versions`), and whoever reads the record of the run compares them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace import runs
from headrace.child_python import ChildReport
from headrace.errors import HeadraceError, ObjectChanged, ObjectMissing, StorageError
from headrace.hosting.helpers.artefacts import SYNC, ArtefactPlan, artefact_plan, not_stored, text
from headrace.hosting.helpers.helper_main import work
from headrace.instance import storage
from headrace.instance.kept_files import FILE, LOST, OTHER, walk
from headrace.instance.paths import TreePaths
from headrace.instance.storage import THREADS, Object, Store
from headrace.runs import ArtefactsStored, Clash, EventWriter, Run, RunPaths
from headrace.runs.events import AttemptStarted, Version

QUIET_SECONDS = 5.0


@dataclass
class Folder:
    """A folder and its place.

    Attributes:
        host: whose it is.
        base: its tree.
        path: the folder in it; it need not exist yet.
        uri: the place.
        known: name below the folder to the version (etag) that is at the place.
        seen: the versions of the last look.
    """

    host: str
    base: Path
    path: Path
    uri: str
    known: dict[str, str] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """A version of a file that is not at its place yet."""

    folder: Folder
    name: str
    file: Object


class Mirror:
    """The folders of all hosts.

    Args:
        store: what writes.
        folders: what is kept up to date.
        of_many: other machines write to the places, too.

    Attributes:
        versions: place to the last content (its digest, and when it was brought there) from here; only when `of_many`.
        files: place to bytes, of all files that were brought there; those of earlier attempts may be put in.
        clashes: place to the hosts that wrote it with different content, the one whose file is there last.
        left_out: what of the last look holds no data and is not stored, as ``host:path``.
        lost: what of the last look holds data and cannot be stored; while programs run the next may find it mended.
    """

    def __init__(self, store: Store, folders: Sequence[Folder], of_many: bool = False) -> None:
        self._store = store
        self._folders = folders
        self._of_many = of_many
        self.versions: dict[str, tuple[str, float]] = {}
        self._writers: dict[str, str] = {}
        self.files: dict[str, int] = {}
        self.clashes: dict[str, list[str]] = {}
        self.left_out: list[str] = []
        self.lost: StorageError | None = None

    def look(self, last: bool = False) -> list[Change]:
        """Returns what can be taken now.

        Args:
            last: no program writes any more: everything is taken.
        """
        changes = []
        self.left_out, self.lost = [], None
        for folder in self._folders:
            now: dict[str, str] = {}
            for entry in walk(folder.base, folder.path, links=False):
                if entry.kind == OTHER:
                    self.left_out.append(f"{folder.host}:{entry.name}")
                elif entry.kind == LOST:
                    self.lost = self.lost or not_stored(folder.host, entry)
                if entry.kind != FILE:
                    continue
                try:
                    file = storage.local_object(entry.path)
                except HeadraceError:  # a program has removed it meanwhile; the next look is complete
                    continue
                now[entry.name] = file.etag
                if folder.known.get(entry.name) == file.etag:
                    continue
                if last or (folder.seen.get(entry.name) == file.etag and is_settled(file)):
                    changes.append(Change(folder, entry.name, file))
            folder.seen = now
        return changes

    def take(self, changes: Iterable[Change]) -> HeadraceError | None:
        """Brings files to their places, several at once.

        Returns:
            The first error of those that another try may mend; a file that has changed or gone meanwhile is none.
        """
        trouble: HeadraceError | None = None
        queues: dict[str, list[Change]] = {}
        for change in changes:
            queues.setdefault(storage.join(change.folder.uri, change.name), []).append(change)
        for queue in queues.values():
            queue.sort(key=lambda change: _changed_at(change.file))  # the last writer of a name wins
        while queues:
            now = [queue.pop(0) for queue in queues.values()]
            queues = {uri: queue for uri, queue in queues.items() if queue}
            with ThreadPoolExecutor(min(THREADS, len(now)), "headrace-mirror") as pool:
                for change, error in zip(now, pool.map(self._try, now), strict=True):
                    if error is None:
                        self._taken(change)
                    elif not isinstance(error, ObjectChanged | ObjectMissing) or not _is_other(change):
                        trouble = trouble or error
        return trouble

    def _try(self, change: Change) -> HeadraceError | None:
        uri = storage.join(change.folder.uri, change.name)
        try:
            self._store.upload(change.file.uri, uri, change.file)
        except HeadraceError as error:
            return error
        if self._of_many:
            digest = _digest(Path(change.file.uri))
            if digest and not _is_other(change):  # else the next look takes it, or it has gone
                self.versions[uri] = digest, time.time()
        return None

    def _taken(self, change: Change) -> None:
        uri = storage.join(change.folder.uri, change.name)
        change.folder.known[change.name] = change.file.etag
        self.files[uri] = change.file.size
        before = self._writers.get(uri)
        if before is not None and before != change.folder.host and not self._same_elsewhere(change):
            hosts = self.clashes.setdefault(uri, [before])
            hosts[:] = [host for host in hosts if host != change.folder.host] + [change.folder.host]
        self._writers[uri] = change.folder.host

    def _same_elsewhere(self, change: Change) -> bool:
        """Whether the other hosts' files of that name hold the same now."""
        others = [
            folder.path / change.name
            for folder in self._folders
            if folder is not change.folder and folder.uri == change.folder.uri
        ]
        return all(same_content(other, Path(change.file.uri)) for other in others if other.is_file())


def _digest(path: Path) -> str:
    """Returns a digest of a file's content; empty if it cannot be read."""
    found = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            for piece in _pieces(file.read):
                found.update(piece)
    except OSError:
        return ""
    return found.hexdigest()


def _changed_at(file: Object) -> int:
    try:
        return Path(file.uri).stat().st_mtime_ns
    except OSError:
        return 0  # it has gone meanwhile


def _is_other(change: Change) -> bool:
    """Whether a file is no longer what it was when it was looked at: the next look will see it."""
    try:
        return storage.local_object(change.file.uri).etag != change.file.etag
    except HeadraceError:
        return True


def same_content(one: Path, other: Path) -> bool:
    """Tells whether two files hold the same; not if one cannot be read."""
    try:
        with one.open("rb") as a, other.open("rb") as b:
            if os.fstat(a.fileno()).st_size != os.fstat(b.fileno()).st_size:
                return False
            return all(x == y for x, y in zip(_pieces(a.read), _pieces(b.read), strict=True))
    except (OSError, ValueError):
        return False


def _pieces(read: Callable[[int], bytes]) -> Iterable[bytes]:
    return iter(lambda: read(1 << 20), b"")


def is_settled(file: Object) -> bool:
    """Tells whether no process is writing to a file. The process must ignore SIGIO."""
    try:
        descriptor = os.open(file.uri, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True
    except OSError as error:
        if error.errno == errno.EAGAIN:  # a process has it open for writing
            return False
        return time.time() - os.fstat(descriptor).st_mtime > QUIET_SECONDS
    finally:
        os.close(descriptor)


KNOWN = "kept.json"  # in the run's folder `engine`: what is at the places already, from restore or an earlier attempt
CLEARED = "intermediate-cleared"  # beside it: no file of an earlier run is with the intermediate ones any more
STORED = "stored.json"  # beside it: what the attempts so far have brought to the places
LOOK_SECONDS = 0.5
MOST_OF_A_CPU = 0.05  # a look that takes long makes the next one come later
PATIENCE_SECONDS = 5.0  # between two tries at a place that cannot be written
LAST_TRIES = 3
MOST_VERSIONS = 1000  # told of one machine
FAILED = "ClientError: Checkpoint or intermediate output upload failed"


def folders_of(plan: ArtefactPlan, known: dict[str, dict[str, str]]) -> dict[str, list[Folder]]:
    """Returns what is kept: ``checkpoints`` and ``intermediate`` to the folders of the hosts.

    Args:
        plan: of the run.
        known: folder to name to version, of what is at the places already.
    """
    kept: dict[str, list[Folder]] = {}
    for host in plan.hosts:
        if plan.checkpoints:
            checkpoints = Folder(host.name, Path(host.base), Path(host.checkpoints), plan.checkpoints)
            kept.setdefault("checkpoints", []).append(checkpoints)
        if plan.remote:
            tree = TreePaths(host.base)
            intermediate = Folder(host.name, tree.base, tree.output_intermediate, plan.intermediate)
            kept.setdefault("intermediate", []).append(intermediate)
    for folders in kept.values():
        for folder in folders:
            folder.known.update(known.get(str(folder.path), {}))
    return kept


def read_known(run: RunPaths) -> dict[str, dict[str, str]]:
    """Returns what `write_known` wrote; nothing if it did not."""
    try:
        return msgspec.json.decode((run.engine / KNOWN).read_bytes(), type=dict[str, dict[str, str]])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


class _Led(msgspec.Struct):
    leader: str


def remove_earlier(run: RunPaths, plan: ArtefactPlan, store: Store) -> None:
    """Removes an earlier run's intermediate files from the place, once. Of several machines the leader's does so in the
    first attempt: before any program of the run has started.

    Raises:
        StorageError, UsageError: it cannot be removed.
    """
    if not plan.remote or (run.engine / CLEARED).exists():
        return
    if not plan.part or (plan.part == runs.read_plan(run, _Led).leader and not _goes_on(run)):
        store.remove_others(plan.intermediate)
        (run.engine / CLEARED).touch()


def _goes_on(run: RunPaths) -> bool:
    return any(isinstance(event, AttemptStarted) for event in Run(run).events())


def write_known(run: RunPaths, folders: list[Folder]) -> None:
    """Writes which versions of which files are at their places, for the next attempt of a retried job."""
    # Names that are no UTF-8 are left out: such a file is brought to its place once more.
    known = {
        str(folder.path): {name: etag for name, etag in folder.known.items() if name.isprintable()}
        for folder in folders
    }
    with Store() as store:
        store.write(msgspec.json.encode(known), str(run.engine / KNOWN))


class Stored(msgspec.Struct, frozen=True):
    """What a job has brought to one place.

    Attributes:
        files: place of a file to its bytes.
        clashes: place of a file to the hosts that wrote it with different content, the last one last.
    """

    files: dict[str, int] = {}
    clashes: dict[str, list[str]] = {}


def read_stored(run: RunPaths) -> dict[str, Stored]:
    """Returns what earlier attempts have brought to ``checkpoints`` and ``intermediate``."""
    try:
        return msgspec.json.decode((run.engine / STORED).read_bytes(), type=dict[str, Stored])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def write_stored(run: RunPaths, mirrors: Mapping[str, Mirror]) -> None:
    """Writes what all attempts so far have brought there, for the next one."""
    stored = {
        name: Stored(
            {uri: size for uri, size in mirror.files.items() if uri.isprintable()},
            {uri: hosts for uri, hosts in mirror.clashes.items() if uri.isprintable()},
        )
        for name, mirror in mirrors.items()
    }
    with Store() as store:
        store.write(msgspec.json.encode(stored), str(run.engine / STORED))


class Sync:
    """The work of the process.

    Args:
        paths: the run's directory.
        store: what writes.
    """

    def __init__(self, paths: RunPaths, store: Store) -> None:
        self._paths = paths
        self._plan = artefact_plan(paths, SYNC)
        self._kept = folders_of(self._plan, read_known(paths))
        of_many = bool(self._plan.part)
        self._mirrors = {name: Mirror(store, folders, of_many) for name, folders in self._kept.items()}
        for name, stored in read_stored(paths).items():
            if name in self._mirrors:
                self._mirrors[name].files.update(stored.files)
                self._mirrors[name].clashes.update(stored.clashes)
        self._told = ""

    def watch(self, stop: int) -> None:
        """Looks again and again until the descriptor `stop` can be read."""
        pause = LOOK_SECONDS
        while not select.select([stop], [], [], pause)[0]:
            began = time.monotonic()
            trouble = self._look(last=False)
            pause = max(LOOK_SECONDS, (time.monotonic() - began) / MOST_OF_A_CPU)
            if trouble is None:
                self._told = ""
                pause = min(pause, 10 * LOOK_SECONDS)
                continue
            pause = max(pause, PATIENCE_SECONDS)
            if trouble.message != self._told:
                self._told = trouble.message
                print(f"warning: {trouble.message}; trying again", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Takes all that is not at its place yet. Raises the error that stays after several tries."""
        for left in reversed(range(LAST_TRIES)):
            trouble = self._look(last=True)
            if trouble is None:
                break
            if not left:
                raise trouble
        write_known(self._paths, [folder for folders in self._kept.values() for folder in folders])
        write_stored(self._paths, self._mirrors)
        with EventWriter(self._paths.events(SYNC)) as events:
            for name, mirror in self._mirrors.items():
                if mirror.files or mirror.left_out:
                    events.write(self._event(name, mirror))
        for mirror in self._mirrors.values():
            if mirror.lost is not None:  # all else is at its place by now
                raise mirror.lost

    def _look(self, last: bool) -> HeadraceError | None:
        trouble = None
        for mirror in self._mirrors.values():
            trouble = mirror.take(mirror.look(last)) or trouble
        return trouble

    def _event(self, name: str, mirror: Mirror) -> ArtefactsStored:
        place = self._plan.checkpoints if name == "checkpoints" else self._plan.intermediate

        def named(uri: str) -> str:
            return uri[len(place) :].lstrip("/").encode(errors="backslashreplace").decode()

        clashes = [Clash(named(uri), hosts[-1], tuple(hosts[:-1])) for uri, hosts in sorted(mirror.clashes.items())]
        versions = [Version(named(uri), digest, at) for uri, (digest, at) in mirror.versions.items()]
        newest = sorted(versions, key=lambda version: version.at)[-MOST_VERSIONS:]
        size = sum(mirror.files.values())
        return ArtefactsStored(
            t=time.time(),
            name=name,
            uri=place,
            files=len(mirror.files),
            bytes=size,
            stored=size,
            clashes=tuple(clashes[:100]),
            clash_count=len(clashes),
            left_out=tuple(text(each) for each in mirror.left_out[:100]),
            part=self._plan.part,
            versions=tuple(newest),
        )


def main(paths: RunPaths) -> None:
    """Entry point."""
    stop, stop_end = os.pipe()
    os.set_blocking(stop_end, False)
    signal.set_wakeup_fd(stop_end)
    signal.signal(signal.SIGTERM, lambda *_: None)  # it does not break off, there is a last round
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # of leases that end at once, see `is_settled`
    with Store() as store:
        syncing = Sync(paths, store)
        remove_earlier(paths, artefact_plan(paths, SYNC), store)
        ChildReport(ready=True).send()
        syncing.watch(stop)
        syncing.finish()


if __name__ == "__main__":
    sys.exit(work(main, FAILED, of_service=True))
