"""Brings checkpoints to the hosts before each attempt of a job.

It is started as `python -m headrace.hosting.helpers.restore RUN_DIR`.

Every host gets all that is at their place, as on the service, also what other hosts saved in an attempt before: each
file is fetched once and copied from host to host. Ends with 0, or with 1 and ``error: ...`` as the last line of
standard error. SIGTERM ends it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path

from headrace.errors import ObjectMissing
from headrace.hosting.helpers.artefacts import RESTORE, artefact_plan
from headrace.hosting.helpers.helper_main import work
from headrace.hosting.helpers.sync import Folder, read_known, same_content, write_known
from headrace.instance import storage
from headrace.instance.kept_files import resolve
from headrace.instance.storage import Object, Store
from headrace.runs import CheckpointsRestored, EventWriter, RunPaths

FAILED = "ClientError: Checkpoint download failed"


def restore(paths: RunPaths, store: Store) -> None:
    """Brings the checkpoints of a run to its hosts, before the first attempt and before every other one.

    A host that has a file already keeps it when no host has written one of that name later. When other machines have
    hosts of the job too, nothing is known of theirs: it keeps what nobody could store, and gets the rest.

    Raises:
        StorageError, UsageError: they cannot be read, or not written.
    """
    plan = artefact_plan(paths, RESTORE)
    kept = [Folder(host.name, Path(host.base), Path(host.checkpoints), plan.checkpoints) for host in plan.hosts]
    found = find(store, plan.checkpoints)
    latest = {name: newest(storage.inside(folder.path, name) for folder in kept) for name in found}
    source = dict(found)
    known = read_known(paths)
    for folder in kept:
        folder.known.update(known.get(str(folder.path), {}))
        places = {name: storage.inside(folder.path, name) for name in found}
        stays = is_unsaved if plan.part else is_current
        wanted = [name for name in places if not stays(folder, name, latest[name])]
        for name in wanted:
            _remove_links_out(folder, name)
        store.download_all([(source[name], places[name]) for name in wanted])
        for name in wanted:
            source[name] = storage.local_object(str(places[name]))
            folder.known[name] = source[name].etag
    write_known(paths, kept)
    with EventWriter(paths.events(RESTORE)) as events:
        size = sum(file.size for file in found.values())
        events.write(CheckpointsRestored(t=time.time(), uri=plan.checkpoints, files=len(found), bytes=size))


def _remove_links_out(folder: Folder, name: str) -> None:
    """Removes links on the way to a file that lead out of the host: nothing of this machine is written through them."""
    path = folder.path
    for part in ("", *name.split("/")[:-1]):
        path = path / part
        if path.is_symlink():
            try:
                resolve(folder.base, path)
            except OSError:
                path.unlink()


def newest(paths: Iterable[Path]) -> Path | None:
    """Returns that of several files which was written last; None when none is there."""
    there = [path for path in paths if path.is_file()]
    return max(there, key=lambda path: path.stat().st_mtime_ns, default=None)


def is_current(folder: Folder, name: str, latest: Path | None) -> bool:
    """Tells whether a host's file is the one that was written last, or holds the same."""
    path = storage.inside(folder.path, name)
    return latest is not None and path.is_file() and (path == latest or same_content(path, latest))


def is_unsaved(folder: Folder, name: str, latest: Path | None) -> bool:
    """Tells whether a host's file is the one that was written last, and is not at its place."""
    path = storage.inside(folder.path, name)
    return path == latest and storage.local_object(str(path)).etag != folder.known.get(name)


def find(store: Store, place: str) -> dict[str, Object]:
    """Returns what is at a place, by the name below it; nothing when a folder is not there yet."""
    prefix = place.rstrip("/") + "/"
    try:
        files = store.list(prefix)
    except ObjectMissing:
        if storage.is_s3(place):
            raise
        return {}
    return {file.uri.removeprefix(prefix): file for file in files}


def main(paths: RunPaths) -> None:
    """Entry point."""
    with Store() as store:
        restore(paths, store)


if __name__ == "__main__":
    sys.exit(work(main, FAILED, of_service=True))
