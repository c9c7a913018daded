"""Brings what the hosts made to its place, after the job: `python -m headrace.hosting.helpers.collect RUN_DIR`.

Model and output of all hosts are merged and become archives, or folders (see `artefacts`).
HEADRACE_JOB_STATUS holds how the job has ended so far. As on the service, the model is stored when the job is Completed
or Stopped, the output in every case. A folder without anything in it gives no archive. What an earlier run of the same
name has left at the place goes: a place holds one run's files.

Ends with 0, or with 1 and ``error: ...`` as the last line of standard error; then nothing is at the place that is not
whole. SIGTERM ends it.
"""

from __future__ import annotations

import os
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from headrace.errors import StorageError
from headrace.hosting.helpers.artefacts import COLLECT, EARLIER, Merged, artefact_plan, merge, text
from headrace.hosting.helpers.helper_main import JOB_STATUS, work
from headrace.instance import storage
from headrace.instance.files import hint
from headrace.instance.kept_files import FILE, LINK, Entry
from headrace.instance.paths import TreePaths
from headrace.instance.storage import Store
from headrace.runs import ArtefactsStored, Clash, EventWriter, RunPaths, Status

COMPRESSION = 1  # weights hardly get smaller; higher levels cost ten times the CPU time for a few percent
LISTED = 100
FAILED = "ClientError: Artifact upload failed"  # how the service begins such a FailureReason


def collect(paths: RunPaths, status: Status, store: Store) -> list[ArtefactsStored]:
    """Stores the artefacts of a run.

    Args:
        paths: the run's directory.
        status: how the job has ended so far.
        store: what reads and writes.

    Returns:
        What was stored; it is in the run's events too.

    Raises:
        StorageError, UsageError: something cannot be read or written. What cannot be followed is told when the rest is
            stored.
    """
    plan = artefact_plan(paths, COLLECT)
    wanted: list[tuple[str, str, Callable[[TreePaths], Path]]] = []
    if status in {Status.COMPLETED, Status.STOPPED}:
        wanted.append(("model", "model", lambda tree: tree.model))
    wanted.append(("output", "data", lambda tree: tree.output_data))
    if not plan.remote:
        wanted.append(("intermediate", "intermediate", lambda tree: tree.output_intermediate))
    stored, lost = [], []
    own: set[str] = set()
    with EventWriter(paths.events(COLLECT)) as events:
        for name, folder, where in wanted:
            merged = merge([(host.name, Path(host.base), where(TreePaths(host.base))) for host in plan.hosts])
            lost.append(merged)
            if not merged.entries and not merged.left_out:
                continue
            if plan.compress and name != "intermediate":
                uri = storage.join(plan.collected, f"{name}.tar.gz")
                size = _store_archive(store, merged, uri, paths.engine)
                own.add(uri)
            else:
                uri = storage.join(plan.collected, folder)
                size, places = _store_folder(store, merged, uri)
                own |= places
            stored.append(_event(name, uri, merged, size))
            events.write(stored[-1])
    if plan.remote:
        for archive, folder in EARLIER:
            place = storage.join(plan.collected, archive)
            if place not in own:
                store.remove(place)
            store.remove_others(storage.join(plan.collected, folder), own)
    for merged in lost:  # all else is stored by now
        merged.raise_lost()
    return stored


def _event(name: str, uri: str, merged: Merged, size: int) -> ArtefactsStored:
    return ArtefactsStored(
        t=time.time(),
        name=name,
        uri=uri,
        files=merged.files,
        bytes=merged.bytes,
        stored=size,
        clashes=tuple(Clash(text(each.path), each.kept, each.dropped) for each in merged.clashes[:LISTED]),
        clash_count=len(merged.clashes),
        left_out=tuple(text(each) for each in merged.left_out[:LISTED]),
    )


def _store_archive(store: Store, merged: Merged, uri: str, scratch: Path) -> int:
    with store.create(uri, scratch) as file:
        write_archive(merged, file)
        file.flush()
        return os.fstat(file.fileno()).st_size


def write_archive(merged: Merged, file: IO[bytes]) -> None:
    """Writes a gzipped tar file. It names no user of this machine.

    Args:
        merged: what goes in.
        file: open for writing.

    Raises:
        StorageError: a file cannot be read.
        OSError: the archive cannot be written.
    """
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=COMPRESSION, format=tarfile.PAX_FORMAT) as archive:
        for entry in merged.entries:
            member = tarfile.TarInfo(entry.name)
            status = _status(entry)
            member.mtime = int(status.st_mtime)
            member.mode = status.st_mode & 0o777
            if entry.kind == FILE:
                with _readable(entry) as content:
                    member.size = os.fstat(content.fileno()).st_size
                    archive.addfile(member, content)
            else:
                member.type = tarfile.SYMTYPE if entry.kind == LINK else tarfile.DIRTYPE
                member.linkname = entry.target
                archive.addfile(member)


def _status(entry: Entry) -> os.stat_result:
    try:
        return entry.path.lstat() if entry.kind == LINK else entry.path.stat()
    except OSError as error:
        raise StorageError(f"{entry.path} cannot be read: {error.strerror}", hint(error)) from error


def _readable(entry: Entry) -> IO[bytes]:
    try:
        return entry.path.open("rb")
    except OSError as error:
        raise StorageError(f"{entry.path} cannot be read: {error.strerror}", hint(error)) from error


def _store_folder(store: Store, merged: Merged, uri: str) -> tuple[int, set[str]]:
    """Stores every file as itself. Returns the bytes and the places of all."""
    files = {entry.name: entry for entry in merged.entries if entry.kind == FILE}
    for entry in merged.entries:
        # An object store has no links: what a link leads to is stored under both names.
        if entry.kind == LINK and os.path.isfile(entry.path):
            files[entry.name] = entry
    places = {storage.join(uri, name): entry.path for name, entry in files.items()}
    store.upload_all((path, place) for place, path in places.items())
    return sum(path.stat().st_size for path in places.values()), set(places)


def main(paths: RunPaths) -> None:
    """Entry point."""
    status = Status(os.environ.get(JOB_STATUS) or Status.FAILED.value)
    with Store() as store:
        collect(paths, status, store)


if __name__ == "__main__":
    sys.exit(work(main, FAILED, of_service=True, stopped="stopped before all was stored"))
