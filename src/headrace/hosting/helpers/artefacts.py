"""What a job keeps and where: the files that tell `restore`, `sync` and `collect` what to do, and how several hosts'
folders become one.

    <output_path>/<job name>/output/model.tar.gz     what all hosts left in /opt/ml/model
    <output_path>/<job name>/output/output.tar.gz    what they left in /opt/ml/output/data
    <output_path>/<job name>/output/intermediate/    what they close in /opt/ml/output/intermediate, while the job runs
    <checkpoint_s3_uri>/                             /opt/ml/checkpoints of every host, there and back
    <output_path>/<job name>/output/parts/<host>/    model and output of a machine, when several have hosts of the job

Without `output_path` the folder is `output` in the run's own. With OutputDataConfig's CompressionType NONE there are
folders `model` and `data` in place of the archives.

A name that several hosts have with the same content is no clash: one copy is kept. With different content the file of
the first host that has it is kept and the clash is reported; a file where another host has a folder is a clash as well.

Links that lead to something inside their folder stay links. Other links are replaced by what they lead to, seen from
inside the instance, see `headrace.instance.kept_files`: what holds no data is left out and reported, what holds some
and cannot be read is `lost`.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.errors import StorageError
from headrace.instance import storage
from headrace.instance.kept_files import FILE, FOLDER, LINK, LOST, OTHER, Entry, walk
from headrace.instance.paths import TreePaths
from headrace.runs import Clash, RunPaths

RESTORE, SYNC, COLLECT = "restore", "sync", "collect"
PARTS = "parts"  # below the output
EARLIER = (("model.tar.gz", "model"), ("output.tar.gz", "data"))  # what a run of the same name may have left there


class HostArtefacts(msgspec.Struct, frozen=True):
    """Folders of one host, on this machine.

    Attributes:
        name: the host.
        base: its /opt/ml.
        checkpoints: its folder of checkpoints.
    """

    name: str
    base: str
    checkpoints: str


class ArtefactPlan(msgspec.Struct, frozen=True):
    """`engine/restore.json`, `engine/sync.json` and `engine/collect.json`.

    Attributes:
        output: where model, output and intermediate go; absolute.
        hosts: those of this machine, by number, the leader first: its file is kept where several hosts have one of the
            same name.
        checkpoints: where checkpoints are kept; absolute, empty when they stay with the hosts.
        compress: whether model and output become archives.
        remote: the user chose `output`: intermediate files go there while the job runs.
        part: name of what this machine contributes when other machines have hosts of the job, too; else empty.
    """

    output: str
    hosts: tuple[HostArtefacts, ...]
    checkpoints: str = ""
    compress: bool = True
    remote: bool = False
    part: str = ""

    @property
    def collected(self) -> str:
        """Where model and output of this machine's hosts go: no two machines store at one place."""
        return storage.join(self.output, PARTS, self.part) if self.part else self.output

    @property
    def intermediate(self) -> str:
        """Where intermediate files go."""
        return storage.join(self.output, "intermediate")


def artefact_plan(run: RunPaths, name: str) -> ArtefactPlan:
    """Reads the plan for one of the processes. Raises OSError or msgspec.DecodeError."""
    return msgspec.json.decode((run.engine / f"{name}.json").read_bytes(), type=ArtefactPlan)


def has_artefacts(run: RunPaths) -> bool:
    """Tells whether any host left something to collect, so that no process need be started when none did."""
    for base in (run.root / "hosts").glob("*"):
        tree = TreePaths(base)
        for folder in (tree.model, tree.output_data, tree.output_intermediate):
            if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir() or any(folder.iterdir())):
                return True
    return False


def holds_earlier(run: RunPaths) -> bool:
    """Tells whether an earlier run of the same name may have left model or output at the place of this one."""
    plan = artefact_plan(run, COLLECT)
    if not plan.remote or storage.is_s3(plan.collected):
        return plan.remote
    return any(os.path.lexists(Path(plan.collected, name)) for names in EARLIER for name in names)


@dataclass
class Merged:
    """The folders of all hosts as one.

    Attributes:
        entries: folders before what is in them, else by name.
        clashes: names with more than one content.
        left_out: what holds no data and is not stored, as ``host:path``.
        lost: what holds data and cannot be stored, as the host and an entry that says why.
    """

    entries: list[Entry] = field(default_factory=list)
    clashes: list[Clash] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    lost: list[tuple[str, Entry]] = field(default_factory=list)

    @property
    def files(self) -> int:
        """How many files there are."""
        return sum(entry.kind == FILE for entry in self.entries)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.entries)

    def raise_lost(self) -> None:
        """Raises StorageError if there is anything that cannot be stored."""
        if self.lost:
            more = f" (and {len(self.lost) - 1} more)" if len(self.lost) > 1 else ""
            raise not_stored(*self.lost[0], more)


def merge(folders: Sequence[tuple[str, Path, Path]]) -> Merged:
    """Merges folders.

    Args:
        folders: of each host its name, its base directory (what it sees as /opt/ml) and the folder. The first host
            that has a name keeps it.

    Raises:
        StorageError: something cannot be compared.
    """
    merged = Merged()
    kept: dict[str, tuple[str, Entry]] = {}
    dropped: dict[str, list[str]] = {}
    for host, base, folder in folders:
        blocked: list[str] = []
        for entry in walk(base, folder, links=True):
            if entry.kind == OTHER:
                merged.left_out.append(f"{host}:{entry.name}")
                continue
            if entry.kind == LOST:
                merged.lost.append((host, entry))
                continue
            if any(entry.name.startswith(name) for name in blocked):
                continue  # below a folder that is a file or a link of another host
            _, first = kept.setdefault(entry.name, (host, entry))
            if first is not entry and not _same(first, entry):
                dropped.setdefault(entry.name, []).append(host)
                if entry.kind == FOLDER:
                    blocked.append(f"{entry.name}/")
    merged.entries = [kept[name][1] for name in sorted(kept, key=lambda name: name.split("/"))]
    merged.clashes = [Clash(name, kept[name][0], tuple(hosts)) for name, hosts in sorted(dropped.items())]
    return merged


def not_stored(host: str, entry: Entry, more: str = "") -> StorageError:
    """Returns the error for what holds data and cannot be stored."""
    return StorageError(
        f"{host}: {text(str(entry.path))} cannot be stored: {text(entry.target)}{more}",
        "let the program put a readable copy there",
    )


def text(name: str) -> str:
    """Returns a file's name for a record: bytes that are not UTF-8 as ``\\udc80``."""
    return name.encode(errors="backslashreplace").decode()


def _same(one: Entry, other: Entry) -> bool:
    if one.kind != other.kind:
        return False
    if one.kind == LINK:
        return one.target == other.target
    if one.kind == FOLDER:
        return True
    try:
        return one.size == other.size and filecmp.cmp(one.path, other.path, shallow=False)
    except OSError as error:
        raise StorageError(f"{error.filename or other.path} cannot be read: {error.strerror}") from error
