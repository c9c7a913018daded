"""Keeps checkpoints and intermediate output safe while a job runs.

It is started as `python -m headrace.hosting.helpers.sync RUN_DIR`.

New and changed files of /opt/ml/checkpoints and /opt/ml/output/intermediate of every host go to their places (see
`artefacts`) within about a second of their last write; nothing is ever removed there. It reports on standard
output when it has begun. SIGTERM asks for a last look, after which it ends.

A place that cannot be written is tried again as long as the job runs, with a warning on standard error. If the last
look cannot be stored either it ends with 1 and ``error: ...`` as the last line of standard error, else with 0.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace import runs
from headrace.errors import HeadraceError
from headrace.hosting.helpers.artefacts import SYNC, ArtefactPlan, read_plan
from headrace.hosting.helpers.helper_main import work
from headrace.hosting.helpers.merge_hosts import text
from headrace.hosting.helpers.mirror import Folder, Mirror
from headrace.instance.paths import TreePaths
from headrace.instance.storage import Store
from headrace.processes.child_report import ChildReport
from headrace.runs import ArtefactsStored, Clash, EventWriter, Run, RunPaths
from headrace.runs.events import AttemptStarted, Version

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
        self._plan = read_plan(paths, SYNC)
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
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # of leases that end at once, see `mirror`
    with Store() as store:
        syncing = Sync(paths, store)
        remove_earlier(paths, read_plan(paths, SYNC), store)
        ChildReport(ready=True).send()
        syncing.watch(stop)
        syncing.finish()


if __name__ == "__main__":
    sys.exit(work(main, FAILED, of_service=True))
