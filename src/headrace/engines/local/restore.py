"""Brings earlier checkpoints to the hosts before a job starts: `python -m headrace.engines.local.restore RUN_DIR`.

Every host gets all of them, as on the service: each is fetched once and copied from host to host. Ends with 0, or with
1 and ``error: ...`` as the last line of standard error. SIGTERM ends it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from headrace.engines.local.artefacts import RESTORE, read_plan
from headrace.engines.local.mirror import Folder
from headrace.engines.local.sync import write_known
from headrace.engines.local.working import work
from headrace.errors import ObjectMissing
from headrace.instance import storage
from headrace.instance.storage import Object, Store
from headrace.runs import CheckpointsRestored, EventWriter, RunPaths

FAILED = "ClientError: Checkpoint download failed"


def restore(paths: RunPaths, store: Store) -> None:
    """Brings the checkpoints of a run to its hosts.

    Raises:
        StorageError, UsageError: they cannot be read, or not written.
    """
    plan = read_plan(paths, RESTORE)
    kept = [Folder(host.name, Path(host.checkpoints), plan.checkpoints) for host in plan.hosts]
    found = find(store, plan.checkpoints)
    source = [(file, name) for name, file in found.items()]
    for folder in kept:
        pairs = [(file, storage.inside(folder.path, name)) for file, name in source]
        store.download_all(pairs)
        copies = [(storage.local_object(str(path)), name) for (_, path), name in zip(pairs, found, strict=True)]
        folder.known.update({name: file.etag for file, name in copies})
        source = copies
    write_known(paths, kept)
    with EventWriter(paths.events(RESTORE)) as events:
        size = sum(file.size for file in found.values())
        events.write(CheckpointsRestored(t=time.time(), uri=plan.checkpoints, files=len(found), bytes=size))


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
    sys.exit(work(main, FAILED))
